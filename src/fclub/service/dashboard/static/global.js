// The page of the global server.

import { chart } from "./chart.js";
import { follow, samples } from "./live.js";
import { showLearning } from "./learning.js";
import { drawMap } from "./map.js";
import { ago, bytes, count, counts, eventEntries, log, part, put, rows, several, showHead, showNotes } from "./show.js";
import { meter, percent, showPromise } from "./budget.js";
import { explainTerms } from "./terms.js";

const MUCH = 10; // messages that are not confirmed
const CUT_OFF = { good: false, text: "Cut off from the broker: no server is heard." };

function show(now) {
  const { sample, state, events, visitors, connected } = now;
  showHead(now);
  counts({ "servers-count": state.servers.length, reported: sample.reported, messages: sample.messages });
  put("bytes", bytes(sample.bytes));
  showLearning(samples, visitors, state.policy);
  showNotes(connected ? state.notes : [CUT_OFF, ...state.notes]);
  showPhase(state.phase);
  showGroups(state);
  showLeft(state, sample);
  log("events", eventEntries(events), "Nothing to report.");
  showCommunication(state);
}

// Only the printed algorithms have phases that the global server starts.
function showPhase(phase) {
  document.getElementById("clock").hidden = phase === null;
  if (phase === null) return;
  const { number, reported, next, missing } = phase;
  put("phase", count(number));
  const bar = document.getElementById("phase-bar");
  const last = 2 ** number - 2;
  bar.max = Math.max(next - last, 1);
  bar.value = Math.min(Math.max(reported - last, 0), bar.max);
  const waiting = missing ? `Waiting for the reports of ${some(missing)}.` : "All clusters are settled.";
  put("phase-next", `${waiting} Phase ${number + 1} begins at ${count(next)} shared observations; ${count(reported)} so far.`);
}

function some(names) {
  const rest = names.length - 5;
  return names.slice(0, 5).join(", ") + (rest > 0 ? ` and ${rest} others` : "");
}

// Types are the same on every server, so there is nothing to draw between them: a table says all.
function showGroups({ groups, members, servers }) {
  const types = groups.filter((group) => group.kind === "type");
  const found = groups.length - types.length;
  put("clusters-name", types.length ? "types" : "global clusters");
  put("clusters", count(types.length || found));
  document.getElementById("types").hidden = types.length === 0;
  document.getElementById("map").hidden = found === 0;
  put("groups-told", groups.length ? learned(types, found, members) : waiting(servers));
  if (types.length) showTypes(types, groups, members);
  if (found) drawMap(document.getElementById("map"), servers, clustersOf(groups, members));
}

function learned(types, found, members) {
  const parts = [];
  if (types.length) parts.push(`All servers learn the same types together; who is of which type stays at home.${hidden(types)}`);
  if (found) {
    const alone = new Map();
    for (const [, , k] of members) alone.set(k, (alone.get(k) ?? 0) + 1);
    const shared = [...alone.values()].filter((number) => number > 1).length;
    const joined = `${several(shared, "global cluster")} of ${count(found)} ${shared === 1 ? "joins" : "join"} several local clusters.`;
    parts.push(shared ? joined : `None of ${several(found, "global cluster")} joins several local clusters.`);
  }
  return parts.join(" ");
}

const hidden = (types) =>
  types.every((type) => type.known !== null) && types.reduce((sum, { known, weight }) => sum + weight * known, 0) < 0.5
    ? " So far noise hides most of what the types like: servers go by their own users."
    : "";

const waiting = (servers) =>
  servers.some((server) => server.messages || server.unheard !== null)
    ? "No server has shared anything yet: their own pages say what they wait for."
    : "No server has been heard yet.";

function clustersOf(groups, members) {
  const places = new Map();
  const kept = groups.filter((group, k) => group.kind === "cluster" && places.set(k, places.size));
  return {
    members: members.filter(([, , k]) => places.has(k)).map(([owner, id, k]) => [owner, id, places.get(k)]),
    numbers: kept.map((group) => group.number),
    observations: kept.map((group) => group.observations),
  };
}

function showTypes(types, groups, members) {
  const servers = new Map();
  for (const [, , k] of members) servers.set(groups[k], (servers.get(groups[k]) ?? 0) + 1);
  const ordered = [...types].sort((a, b) => b.weight - a.weight || a.number - b.number);
  rows(
    "type-rows",
    ordered.map((type) => [
      String(type.number),
      part(type.weight),
      meter(type.weight, `type ${type.number}: ${part(type.weight)} of all users`),
      count(type.observations),
      part(type.known),
      count(servers.get(type) ?? 0),
    ]),
  );
}

function trust({ quarantined, trouble }) {
  if (quarantined) return { text: "in quarantine", kind: "bad" };
  return trouble ? { text: trouble, kind: "bad" } : { text: "trusted", kind: "good" };
}

function showLeft({ servers, privacy, phase }, { reported }) {
  const silent = servers.filter((server) => server.released === 0).map((server) => server.name);
  const exact = privacy === null ? " This policy adds no noise: exact sums over users leave the servers." : "";
  const none = silent.length ? ` Nothing yet from ${some(silent)}.` : "";
  put("left", `Sums over ${several(reported, "observation")}, and no single one.${none}${exact}`);
  showPromise(privacy);
  const table = document.getElementById("servers").parentElement;
  table.classList.toggle("paper", phase !== null);
  table.classList.toggle("private", privacy !== null);
  rows(
    "servers",
    servers.map((server) => [
      server.name,
      server.unheard === null ? { text: "never", kind: "bad" } : ago(server.unheard),
      count(server.released),
      count(server.messages),
      ...(phase === null ? [] : [count(server.uploads), count(server.downloads)]),
      bytes(server.bytes),
      server.lag > MUCH ? { text: count(server.lag), kind: "bad" } : count(server.lag),
      ...(privacy === null ? [] : budget(server.name, privacy.servers[server.name].share)),
      trust(server),
    ]),
  );
}

const budget = (name, share) => [percent(share), meter(share, `${name}: at most ${percent(share)} of the budget`)];

const points = (x, y) => samples.filter((one) => one[y] !== undefined).map((one) => [one[x], one[y]]);

function showCommunication({ phase }) {
  const series = [{ name: "messages", points: points("t", phase === null ? "messages" : "total") }];
  chart(document.getElementById("communication"), series, { log: true, time: true, unit: "messages" });
}

explainTerms();
follow(show);
