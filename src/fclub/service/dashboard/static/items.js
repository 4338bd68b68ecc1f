// What the types like, and what a user or an item is about: asked for beside the stream.

import { ask } from "./live.js";
import { count, decimal, part, put, rows, several } from "./show.js";

const EVERY = 15000; // milliseconds
const MOST = 5;
let asked = -Infinity;
let group = "cluster";

// Text of how much each is liked, best first.
const liked = (some) => some.map(({ name, rate }) => `${name} ${decimal(rate)}`).join(", ") || "–";

export async function showLikes({ items, told }, word) {
  put("likes-title", `What do the ${word}s like?`);
  put("likes-head", (group = word));
  for (const kind of ["user", "item"]) document.getElementById(`try-${kind}`).parentElement.hidden = items === 0;
  if (items === 0) return put("likes-told", "There is no catalogue, so nothing is known of single items.");
  if (performance.now() - asked < EVERY) return;
  asked = performance.now();
  const { ok, body } = await ask(`/v1/clusters/liked?count=${MOST}`);
  const seen = ok ? body.clusters.filter((one) => one.items.length) : [];
  put("likes-told", `${ok ? several(items, "item") : body.error}. ${told}`);
  document.getElementById("likes-table").hidden = seen.length === 0;
  rows(
    "likes-rows",
    seen.map((one) => [String(one.cluster), part(one.share), liked(one.items), liked(one.categories)]),
  );
}

function onAsked(kind, path, show) {
  document.getElementById(`try-${kind}`).addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = document.getElementById(`${kind}-name`).value;
    const { ok, body } = await ask(path(encodeURIComponent(name)));
    const { text, lines } = ok ? show(body) : { text: `${body.error}.`, lines: [] };
    put(`${kind}-told`, text);
    document.getElementById(`${kind}-table`).hidden = lines.length === 0;
    rows(`${kind}-rows`, lines);
  });
}

function user({ user, cluster, observations, items }) {
  const lines = items.map(({ item, score, mean, deviation }) => [item, ...[score, mean, deviation].map(decimal)]);
  const shown = items.length ? "would be shown now" : "has nothing left to be shown";
  return { text: `${user}, ${group} ${cluster}, ${several(observations, "observation")}: ${shown}.`, lines };
}

function item({ item, effect, opinions, similar }) {
  const lines = opinions.map((one) => [one.cluster === null ? "all" : `${group} ${one.cluster}`, decimal(one.rate), count(one.observations)]);
  const sorts = (item.categories ?? []).join(", ");
  const beyond = effect && ` Beyond its features it is worth ${decimal(effect.mean)} ± ${decimal(effect.deviation)}.`;
  const like = similar.slice(0, MOST).map((one) => one.item).join(", ");
  return { text: `${item.id}${sorts && ` (${sorts})`}.${beyond ?? ""}${like && ` Similar: ${like}.`}`, lines };
}

export function answerLookUps() {
  onAsked("user", (name) => `/v1/users/${name}/preview`, user);
  onAsked("item", (name) => `/v1/items/${name}/liked`, item);
}
