// The page of the global server.

import { chart } from "./chart.js";
import { follow, samples } from "./live.js";
import { drawMap } from "./map.js";
import { ago, bytes, count, counts, decimal, eventEntries, log, put, rows, showHead } from "./show.js";
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

function showPhase({ number, reported, next, waiting }) {
  put("phase", count(number));
  const last = 2 ** number - 2;
  const bar = document.getElementById("phase-bar");
  bar.max = Math.max(next - last, 1);
  bar.value = Math.min(Math.max(reported - last, 0), bar.max);
  put("phase-next", `${count(reported)} of ${count(next)} observations until phase ${number + 1}`);
  put("phase-waiting", waiting ? `waiting for the reports of ${some(waiting)}` : "all clusters are settled");
}

function some(names) {
  const rest = names.length - 5;
  return names.slice(0, 5).join(", ") + (rest > 0 ? ` and ${rest} others` : "");
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
      bytes(server.bytes),
      server.quarantined ? { text: "in quarantine", kind: "bad" } : { text: "trusted", kind: "good" },
    ]),
  );
}

const points = (x, y) => samples.filter((one) => one[y] !== undefined).map((one) => [one[x], one[y]]);

function showCommunication() {
  const series = [
    { name: "messages", points: points("t", "total") },
    { name: "at most", points: points("t", "limit") },
  ];
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

function showPrivacy({ claimed, servers }) {
  document.getElementById("no-privacy").hidden = claimed !== null;
  document.getElementById("privacy").hidden = claimed === null;
  if (claimed === null) return;
  put("claimed", `ε = ${claimed[0]}, δ = ${claimed[1]}`);
  rows("releases", servers.map((server) => [server.name, count(server.uploads + server.phases)]));
}

explainTerms();
follow(show);
