// The page of a local server.

import { chart, rate } from "./chart.js";
import { follow, samples } from "./live.js";
import { answerLookUps, showLikes } from "./items.js";
import { showLearning } from "./learning.js";
import { count, counts, decimal, drawn, eventEntries, log, part, put, rows, several, showHead, showNotes } from "./show.js";
import { meter, percent, showPromise } from "./budget.js";
import { explainTerms } from "./terms.js";

const WINDOW = 10;
const ALIKE = 1.2; // times the mean share: no type is larger
const CUT_OFF = { good: false, text: "Cut off from the broker: users are served, nothing is sent." };

function show(now) {
  const { sample, state, events, visitors, connected } = now;
  const { users, observations, decisions } = sample;
  document.title = `${state.name} · fclub`;
  put("name", `· ${state.name}`);
  showHead(now);
  counts({ users, observations, decisions, messages: state.messages });
  showLearning(samples, visitors, state.policy);
  showNotes(connected ? state.notes : [CUT_OFF, ...state.notes]);
  note("begun", state.begun && `The last session with the global server began because ${state.begun}.`);
  showClusters(state.clusters, state.privacy?.unit);
  showLikes(state.catalogue, state.clusters.some((one) => one.kind === "type") ? "type" : "cluster").catch(() => {});
  showLeft(state);
  showSpeed();
  showLatency(state.latency, sample.requests);
  const failed = Object.entries(state.failed).map(([status, number]) => `${count(number)} × ${status}`);
  put("failed", failed.length ? `Refused requests: ${failed.join(", ")}.` : "No request was refused.");
  log("events", eventEntries(events), "Nothing to report.");
}

function note(id, text) {
  document.getElementById(id).hidden = !text;
  put(id, text ?? "");
}

function showSpeed() {
  const series = [{ name: "decisions", points: rate(samples, "decisions", "t", WINDOW) }];
  chart(document.getElementById("speed"), series, { time: true, unit: "per second" });
}

function showLatency(buckets, requests) {
  const within = buckets.find(([, number]) => number >= 0.99 * requests);
  const text = within ? `99 of 100 recommendations took at most ${decimal(1000 * within[0])} ms.` : "";
  put("tail", requests ? text || "More than 1 in 100 recommendations took over a second." : "No requests yet.");
}

// Types without users are counted, not listed.
function showClusters(clusters, unit) {
  const types = clusters.some((one) => one.kind === "type");
  const shown = clusters.filter((one) => one.users > 0);
  const word = types ? "type" : "cluster";
  put("clusters-name", types ? "types with users" : "clusters");
  put("clusters", count(shown.length));
  put("cluster-head", word);
  put("users-head", types ? "users, most likely" : "users");
  put("clusters-told", told(clusters, shown, types, unit));
  const table = document.getElementById("cluster-table");
  table.hidden = shown.length === 0;
  const sure = shown.some((one) => one.known !== null);
  table.classList.toggle("types", types);
  table.classList.toggle("sure", sure);
  shown.sort((a, b) => b.users - a.users || a.number - b.number);
  rows(
    "cluster-rows",
    shown.map((one) => [
      String(one.number),
      count(one.users),
      types ? part(one.weight) : one.group === null ? "–" : String(one.group),
      ...(sure ? [part(one.known)] : []),
      count(one.own),
      count(one.others),
      share(one),
    ]),
  );
}

function told(clusters, shown, types, unit) {
  if (!clusters.length) return "Nobody has come yet.";
  const others = Math.max(...clusters.map((one) => one.shared_by)) - 1;
  const alike = Math.max(...clusters.map((one) => one.weight)) < ALIKE / clusters.length;
  const blurred = types && alike && clusters.every((one) => one.known < 0.5);
  const mixed = blurred ? " The data do not tell types apart yet: users are served from a mixture of all." : "";
  const helped = others > 0 ? `Data of ${several(others, types ? "other server" : "other local cluster")} help.` : `Nobody else’s data are in these estimates yet${unit === "user" ? ": they enter once releases tell more of the types than noise hides" : ""}.`;
  const empty = clusters.length - shown.length;
  const rest = types && empty ? ` ${several(empty, "further type")} ${empty === 1 ? "has" : "have"} no user here.` : "";
  return helped + rest + mixed;
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

function showLeft({ messages, waiting, next, privacy }) {
  const left = messages ? `${several(messages, "message")} so far` : "Nothing has left this server";
  const kind = privacy === null ? "; this policy adds no noise: exact sums over users leave" : "";
  const open = waiting && privacy?.unit !== "user" ? `. ${several(waiting, "observation")} ${waiting === 1 ? "is" : "are"} not known outside` : "";
  put("left", `${left}${kind}${open}.`);
  put("next", next);
  const spent = showPromise(privacy);
  if (spent === null) return;
  const phases = privacy.phases > 1 && privacy.unit === "event" ? ` in ${count(privacy.phases)} phases, which add up` : "";
  put("spent-what", privacy.unit === "user" ? " in this period" : phases);
  put("spent", spent(privacy.server));
  bar("spent-bar", privacy.server.share, "spent");
  put("open-streams", `By stream: ${several(privacy.open, "open one")}${privacy.open > privacy.streams.length ? ", those with most data" : ""}`);
  document.getElementById("by-stream").hidden = privacy.open === 0;
  rows(
    "streams",
    privacy.streams.map(({ stream, releases, provision, observations, share }) => [
      stream,
      `${count(releases)} of ${count(provision)}`,
      count(observations),
      percent(share),
      meter(share, `stream ${stream}: ${percent(share)} of the budget`),
    ]),
  );
}

function bar(id, value, label) {
  document.getElementById(id).replaceChildren(meter(value, `${label}: ${percent(value)} of the budget`));
}

explainTerms();
answerLookUps();
follow(show);
