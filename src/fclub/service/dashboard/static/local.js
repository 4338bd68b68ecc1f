// The page of a local server.

import { chart, rate } from "./chart.js";
import { follow, samples } from "./live.js";
import { count, counts, decimal, drawn, eventEntries, log, put, rows, several, showHead } from "./show.js";
import { meter, percent, showBudget } from "./budget.js";
import { explainTerms } from "./terms.js";

const WINDOW = 10;
const REWARD_WINDOW = 60;

function show(now) {
  const { sample, state, events, visitors, connected } = now;
  const { users, observations, clusters, decisions, lag } = sample;
  document.title = `${state.name} · fclub`;
  put("name", `· ${state.name}`);
  showHead(now);
  counts({ users, observations, clusters, decisions, lag });
  put("link", connected ? "connected" : "cut off");
  note("trouble", state.trouble);
  note("begun", state.begun && `The last session with the global server began because ${state.begun}.`);
  showSpeed();
  showReward(visitors);
  showClusters(state.clusters);
  showPrivacy(state.privacy);
  showLatency(state.latency, sample.requests);
  const failed = Object.entries(state.failed).map(([status, number]) => `${count(number)} × ${status}`);
  put("failed", failed.length ? `Refused requests: ${failed.join(", ")}` : "No request was refused.");
  log("events", eventEntries(events), "Nothing to report.");
}

function note(id, text) {
  document.getElementById(id).hidden = !text;
  put(id, text ?? "");
}

function showSpeed() {
  const series = [
    { name: "decisions", points: rate(samples, "decisions", "t", WINDOW) },
    { name: "feedback", points: rate(samples, "feedback", "t", WINDOW) },
  ];
  chart(document.getElementById("speed"), series, { time: true, unit: "per second" });
  const milliseconds = rate(samples, "request_seconds", "requests", WINDOW).map(([t, s]) => [t, 1000 * s]);
  chart(document.getElementById("latency"), [{ name: "mean", points: milliseconds }], { time: true, unit: "ms" });
}

function showLatency(buckets, requests) {
  const within = buckets.find(([, number]) => number >= 0.99 * requests);
  const text = within ? `99 of 100 recommendations took at most ${decimal(1000 * within[0])} ms` : "";
  put("tail", requests ? text || "more than 1 in 100 recommendations took over a second" : "no requests yet");
}

function showReward(visitors) {
  const series = [{ name: "this server", points: rate(samples, "reward", "feedback", REWARD_WINDOW) }];
  for (const name of Object.keys(visitors?.policies ?? {}).slice(1)) {
    const told = samples.filter((one) => one[`reward of ${name}`] !== undefined);
    series.push({ name, points: rate(told, `reward of ${name}`, "visits", REWARD_WINDOW) });
  }
  chart(document.getElementById("reward"), series, { time: true, unit: "per visit" });
  document.getElementById("no-rivals").hidden = visitors !== null;
}

function showClusters(clusters) {
  rows(
    "cluster-rows",
    clusters.map((one) => [
      one.cluster === null ? "not numbered yet" : String(one.cluster),
      one.group === null ? "–" : String(one.group),
      count(one.users),
      count(one.own),
      count(one.others),
      share(one),
      count(one.waiting),
    ]),
  );
}

function share({ own, others }) {
  const all = Math.max(own + others, 1);
  const svg = drawn("svg", { class: "share", viewBox: "0 0 100 12", preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", `${Math.round((100 * own) / all)} % own`);
  svg.append(
    drawn("rect", { class: "own", width: (100 * own) / all, height: 12 }),
    drawn("rect", { class: "others", x: (100 * own) / all, width: (100 * others) / all, height: 12 }),
  );
  return svg;
}

function showPrivacy(privacy) {
  const spent = showBudget(privacy);
  if (spent === null) return;
  const phases = privacy.phases > 1 ? ` in ${count(privacy.phases)} phases, which add up` : "";
  put("spent", `${spent(privacy.server)}${phases}`);
  document.getElementById("exhausted").hidden = !privacy.exhausted;
  put("open-streams", `${several(privacy.open, "open stream")}${privacy.open > privacy.streams.length ? "; those with most data:" : ":"}`);
  rows(
    "streams",
    privacy.streams.map(({ stream, releases, observations, share }) => [
      stream,
      count(releases),
      count(observations),
      percent(share),
      meter(share, `stream ${stream}: ${percent(share)} of the budget`),
    ]),
  );
}

explainTerms();
follow(show);
