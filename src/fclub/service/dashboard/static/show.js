// Small helpers that both pages use to put numbers and rows in their places.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const SVG = "http://www.w3.org/2000/svg";

export const count = (value) => whole.format(value);
export const several = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const decimal = (value) => (Math.abs(value) >= 1000 ? whole.format(value) : short.format(value));

// A mean and half the width of its band, with as many digits as that width is worth.
export function around(mean, half) {
  const places = half > 0 ? Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(half)))) : 3;
  return `${mean.toFixed(places)} ± ${half.toFixed(places)}`;
}

export const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

// With its date, unless that is today's.
function moment(seconds) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock(seconds) : `${at.toLocaleDateString("sv")} ${clock(seconds)}`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(4, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return `${short.format(value / 1000 ** power)} ${units[power]}`;
}

export function ago(seconds) {
  if (seconds < 2) return "now";
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

export function put(id, text) {
  const place = document.getElementById(id);
  if (place.textContent !== text) place.textContent = text;
}

// Whole numbers by the place that shows them.
export function counts(numbers) {
  for (const [id, value] of Object.entries(numbers)) put(id, count(value));
}

// A part of the whole; nothing where it is not known.
export const part = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

// What is well and what is not: [{good, text}].
export function showNotes(notes) {
  const list = document.getElementById("notes");
  const lines = notes.map(({ good, text }) => element("li", { class: good ? "good" : "bad" }, text));
  if (list.textContent !== notes.map((one) => one.text).join("")) list.replaceChildren(...lines);
}

export function showHead({ state, uptime }) {
  put("policy", state.policy);
  put("uptime", `started ${ago(uptime)}`);
}

export function element(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

export function drawn(name, attributes = {}, text = "") {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text) found.textContent = text;
  return found;
}

// Reading a width makes the browser lay everything out; so it is read once, and told when it changes.
const widths = new WeakMap();
const watch = new ResizeObserver((entries) => {
  const changed = entries.filter(({ target, contentRect }) => widths.get(target) !== contentRect.width);
  for (const { target, contentRect } of changed) widths.set(target, contentRect.width);
  if (changed.length) dispatchEvent(new Event("widths"));
});

export function widthOf(figure) {
  if (!widths.has(figure)) {
    widths.set(figure, figure.clientWidth);
    watch.observe(figure);
  }
  return widths.get(figure);
}

// Rows are lists of cells; a cell is text, a node, or {text, kind} with a class.
export function rows(id, lines) {
  const body = document.getElementById(id);
  body.replaceChildren(
    ...lines.map((cells) =>
      element("tr", {}, ...cells.map((cell) => element("td", cell.kind ? { class: cell.kind } : {}, cell.text ?? cell))),
    ),
  );
}

// Entries are [seconds, kind, text], the latest first; nothing is touched when nothing is new.
export function log(id, entries, nothing) {
  const list = document.getElementById(id);
  const mark = entries.length ? `${entries[0]}${entries.length}` : "none";
  if (list.dataset.mark === mark) return;
  list.dataset.mark = mark;
  const lines = entries.map(([at, kind, text]) =>
    element("li", {}, element("time", {}, moment(at)), element("span", {}, element("strong", {}, kind), " ", text)),
  );
  list.replaceChildren(...(lines.length ? lines : [element("li", { class: "nothing" }, nothing)]));
}

// What happened lately, in words; what is told elsewhere on the page can be left out.
export function eventEntries(events, without = []) {
  const facts = ({ at, event, what = "", ...rest }) =>
    [what, ...Object.entries(rest).map(([key, value]) => `${key}: ${value}`)].filter(Boolean).join(", ");
  return events
    .filter(({ event }) => !without.includes(event))
    .map((event) => [event.at, event.event, facts(event)])
    .reverse();
}
