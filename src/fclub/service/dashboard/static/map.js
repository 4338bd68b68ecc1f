// Servers → their local clusters → global clusters. Few elements, however many clusters: one path
// per server and two per global cluster.

import { count, drawn, element, widthOf } from "./show.js";

// An animation costs work in every frame: it is for the few changes that an eye can follow.
const MOST_FLASHES = 12;

let shown = "";
let before = new Map();

export function drawMap(figure, servers, map) {
  const width = Math.max(320, widthOf(figure));
  const mark = `${width}|${servers.length}|${JSON.stringify([map.numbers, map.members])}`;
  if (mark !== shown) {
    shown = mark;
    redraw(figure.querySelector("svg"), width, servers, map);
  }
  for (const [group, label] of figure.labels ?? []) label(map.observations[group]);
  const table = figure.querySelector("details");
  if (table.open) fillTable(table.querySelector("tbody"), servers, map);
}

function redraw(svg, width, servers, map) {
  const layout = place(width, servers, map);
  svg.setAttribute("viewBox", `0 0 ${width} ${layout.height}`);
  svg.setAttribute(
    "aria-label",
    `${servers.length} servers, ${map.members.length} local clusters, ${layout.groups.length} global clusters`,
  );
  const now = new Map(layout.groups.map(({ group, key }) => [key, group]));
  const changed = layout.groups.filter(({ key }) => before.size > 0 && !before.has(key));
  const flashing = new Set(changed.length <= MOST_FLASHES ? changed : []);
  svg.replaceChildren(
    ...layout.owners.map((owner) => drawn("path", { class: "link", d: owner.links })),
    ...layout.groups.flatMap((group) => bonds(group, layout, flashing.has(group))),
    ...serverLabels(servers, layout),
  );
  svg.parentElement.labels = groupLabels(svg, layout, map.numbers);
  before = now;
}

function place(width, servers, map) {
  const members = map.members.map(([owner, id, group]) => ({ owner, id, group }));
  members.sort((a, b) => a.owner - b.owner || a.group - b.group || a.id - b.id);
  const most = Math.max(servers.length, Math.min(members.length, 60), map.observations.length / 4, 6);
  const height = Math.min(680, Math.max(220, most * 15));
  const x = { server: Math.min(84, width * 0.16), cluster: width * 0.45, group: width - Math.min(150, width * 0.32) };
  const spread = (k, n) => 14 + ((k + 0.5) * (height - 28)) / Math.max(n, 1);
  members.forEach((member, k) => (member.y = spread(k, members.length)));
  const owners = servers.map((_, k) => ({ y: spread(k, servers.length), links: "" }));
  const groups = map.observations.map((_, group) => ({ group, members: [], y: 0, key: "" }));
  for (const member of members) {
    groups[member.group].members.push(member);
    owners[member.owner].links += curve(x.server, owners[member.owner].y, x.cluster, member.y);
  }
  for (const group of groups) {
    group.y = group.members.reduce((sum, member) => sum + member.y, 0) / Math.max(group.members.length, 1);
    group.key = group.members.map((member) => `${member.owner}/${member.id}`).join();
  }
  groups.sort((a, b) => a.y - b.y).forEach((group, k) => (group.y = spread(k, groups.length)));
  return { x, height, owners, groups, wide: width > 600, thick: Math.max(1.5, Math.min(9, (height / Math.max(members.length, 1)) * 0.8)) };
}

function curve(x0, y0, x1, y1) {
  const middle = ((x0 + x1) / 2).toFixed(1);
  return `M${x0.toFixed(1)} ${y0.toFixed(1)}C${middle} ${y0.toFixed(1)} ${middle} ${y1.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;
}

const hue = (group) => `hsl(${(group * 137.5 + 212) % 360} 62% 50%)`;

function bonds({ group, members, y }, { x, thick }, changed) {
  const colour = hue(group);
  const kind = changed ? " changed" : "";
  const lines = members.map((member) => curve(x.cluster, member.y, x.group, y)).join("");
  const dots = members.map((member) => `M${x.cluster} ${member.y.toFixed(1)}h0`).join("");
  return [
    drawn("path", { class: `bond${kind}`, stroke: colour, d: lines }),
    drawn("path", { class: "dots", stroke: colour, "stroke-width": thick, d: dots }),
    drawn("circle", { cx: x.group, cy: y, r: 5, fill: colour }),
  ];
}

function serverLabels(servers, { x, owners, height }) {
  const every = Math.ceil((servers.length * 12) / height);
  return servers.flatMap((server, k) => {
    const dot = drawn("circle", { cx: x.server, cy: owners[k].y, r: 4, fill: "currentColor" });
    const at = { class: "name", x: x.server - 8, y: owners[k].y + 4, "text-anchor": "end" };
    return k % every ? [dot] : [dot, drawn("text", at, server.name)];
  });
}

// The numbers of observations change all the time: they are set without drawing anything anew.
function groupLabels(svg, { x, groups, height, wide }, numbers) {
  const every = Math.ceil((groups.length * 12) / height);
  const setters = new Map();
  groups.forEach(({ group, y, members }, k) => {
    if (k % every) return;
    const text = drawn("text", { class: "name", x: x.group + 10, y: y + 4 });
    svg.append(text);
    setters.set(group, (observations) => {
      const words = wide ? `${members.length} local, ${count(observations)} obs.` : count(observations);
      text.textContent = `${numbers[group]}: ${words}`;
    });
  });
  return setters;
}

function fillTable(body, servers, map) {
  const found = map.observations.map((observations, group) => ({ group, observations, members: [] }));
  for (const [owner, , group] of map.members) found[group].members.push(servers[owner].name);
  body.replaceChildren(
    ...found.map(({ group, observations, members }) =>
      element(
        "tr", {},
        element("td", {}, String(map.numbers[group])),
        element("td", {}, count(observations)),
        element("td", {}, count(members.length)),
        element("td", {}, [...new Set(members)].join(", ")),
      ),
    ),
  );
}
