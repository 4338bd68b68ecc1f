// The page of the global server.

import { chart } from "./chart.js";
import { follow, samples } from "./live.js";
import { drawMap } from "./map.js";
import { ago, bytes, count, counts, decimal, eventEntries, log, put, rows, several, showHead } from "./show.js";
import { meter, percent, showBudget } from "./budget.js";
import { explainTerms } from "./terms.js";

function show(now) {
  const { sample, state, changes, events, visitors } = now;
  const { reported, clusters, local_clusters, total } = sample;
  showHead(now);
  counts({ reported, clusters, "local-clusters": local_clusters, total });
  put("bytes", bytes(sample.bytes));
  drawMap(document.getElementById("map"), state.servers, state.map);
  showPhase(state.phase);
  showServers(state.servers, sample.t);
  log("changes", changes.map((change) => [change.at, change.kind, change.text]).reverse(), "Nothing has changed yet.");
  log("events", eventEntries(events, changes.map((change) => change.kind)), "Nothing to report.");
  showCommunication();
  showVisitors(visitors);
  showPrivacy(state);
}

function showPhase({ number, reported, next, missing }) {
  put("phase", count(number));
  const bar = document.getElementById("phase-bar");
  bar.hidden = next === null;
  if (next === null) {
    put("phase-next", `${count(reported)} observations in ${count(number)} rounds of reports`);
    put("phase-waiting", "with this policy every server keeps its own clock, and none waits for another");
    return;
  }
  const last = 2 ** number - 2;
  bar.max = Math.max(next - last, 1);
  bar.value = Math.min(Math.max(reported - last, 0), bar.max);
  put("phase-next", `${count(reported)} of ${count(next)} observations until phase ${number + 1}`);
  put("phase-waiting", missing ? `waiting for the reports of ${some(missing)}` : "all clusters are settled");
}

function some(names) {
  const rest = names.length - 5;
  return names.slice(0, 5).join(", ") + (rest > 0 ? ` and ${rest} others` : "");
}

function trust({ quarantined, trouble }) {
  if (quarantined) return { text: "in quarantine", kind: "bad" };
  return trouble ? { text: trouble, kind: "bad" } : { text: "trusted", kind: "good" };
}

function showServers(servers, now) {
  rows(
    "servers",
    servers.map((server) => [
      server.name,
      server.seen === null ? { text: "never", kind: "bad" } : ago(now - server.seen),
      server.lag ? { text: count(server.lag), kind: "bad" } : "0",
      count(server.uploads),
      count(server.downloads),
      count(server.phases),
      bytes(server.bytes),
      trust(server),
    ]),
  );
}

const points = (x, y) => samples.filter((one) => one[y] !== undefined).map((one) => [one[x], one[y]]);

function showCommunication() {
  const limit = points("t", "limit");
  const series = [{ name: "messages", points: points("t", "total") }];
  if (limit.length > 0) series.push({ name: "at most", points: limit });
  document.getElementById("limited").hidden = limit.length === 0;
  chart(document.getElementById("communication"), series, { log: true, time: true });
}

function showVisitors(visitors) {
  document.getElementById("visitors").hidden = visitors === null;
  if (visitors === null) return;
  const names = Object.keys(visitors.policies);
  const series = names.map((name) => ({ name, points: points("visits", `regret of ${name}`) }));
  chart(document.getElementById("regret"), series);
  const each = (name) => decimal(visitors.policies[name].regret / Math.max(visitors.visits, 1));
  put("visits", `${count(visitors.visits)} visits; lost per visit: ${names.map((name) => `${name} ${each(name)}`).join(", ")}`);
}

function showPrivacy({ privacy, servers, map }) {
  const spent = showBudget(privacy);
  if (spent === null) return;
  const times = privacy.phases === null ? "A user’s stream is paid once" : `Phases add up, ${several(privacy.phases, "phase")} so far`;
  put("spent", `One stream costs ${spent(privacy.stream)}. ${times}: no server has spent more than ${spent(privacy.server)}.`);
  const open = new Map();
  for (const [owner] of map.members) open.set(owner, (open.get(owner) ?? 0) + 1);
  rows(
    "releases",
    servers.map((server, k) => [
      server.name,
      count(open.get(k) ?? 0),
      count(server.uploads + server.phases),
      meter(privacy.server.share, `${server.name}: at most ${percent(privacy.server.share)} of the budget`),
    ]),
  );
}

explainTerms();
follow(show);
