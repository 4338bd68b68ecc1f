// Plain words for the terms of the trade, on demand, for keyboard and pointer alike.

const TERMS = {
  phase:
    "From time to time all servers look at their clusters afresh and the global server decides which " +
    "of them belong together. Each of these phases is twice as long as the one before.",
  known:
    "The part of the first uncertainty about this taste that data have removed: 0 % is a guess, 100 % would " +
    "be certainty.",
  weight: "The share of all users that the model expects to be of this type, by all data so far.",
  epsilon:
    "ε says how much all releases can tell about what is protected. Near 0 nothing; at 1 a guess " +
    "about it can become up to 2.7 times as likely. It grows with every release.",
  delta:
    "δ is the probability with which the guarantee of ε may fail. The smaller, the stronger the guarantee.",
  stream:
    "A sequence of releases about the same people: of one local cluster during a phase, of one user, or of a " +
    "whole server during a period, as the policy has it. Noise is added to each release, and a stream may not cost more than the budget.",
  "local cluster":
    "Users of one server who seem to like the same things. Only sums over such a cluster leave the server.",
  "global cluster": "Local clusters of several servers that seem alike, and so learn from each other.",
  lag: "Messages that the server has not confirmed yet. It catches up by itself when it is back.",
  quarantine:
    "After several messages that cannot be true, the global server ignores a server until an admin releases it.",
};

export function explainTerms() {
  const used = new Set();
  for (const place of document.querySelectorAll("[data-term]")) {
    const name = place.dataset.term;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "term";
    button.textContent = place.textContent;
    button.popoverTargetElement = note(name, used);
    place.replaceChildren(button);
  }
}

function note(name, used) {
  const id = `term-${name.replace(" ", "-")}`;
  if (used.has(name)) return document.getElementById(id);
  used.add(name);
  const text = document.createElement("div");
  text.id = id;
  text.popover = "auto";
  text.textContent = TERMS[name];
  text.addEventListener("toggle", (event) => event.newState === "open" && placeNear(text));
  document.querySelector("main").append(text);
  return text;
}

function placeNear(text) {
  const at = document.activeElement.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - text.offsetWidth - 8);
  const below = at.bottom + 6 + text.offsetHeight < window.innerHeight;
  text.style.left = `${Math.max(8, left)}px`;
  text.style.top = `${below ? at.bottom + 6 : at.top - text.offsetHeight - 6}px`;
}
