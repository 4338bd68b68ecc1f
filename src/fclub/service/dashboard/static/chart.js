// Line charts as SVG, drawn anew with every update: a few hundred points are nothing.

import { clock, decimal, drawn, element, widthOf } from "./show.js";

const HEIGHT = 220;
const EDGE = { left: 58, right: 12, top: 22, bottom: 22 };

// series: [{name, points: [[x, y, half the width of a band], …]}]; options: {log, time, unit, x, digits}
export function chart(figure, series, options = {}) {
  const svg = figure.querySelector("svg");
  const width = Math.max(280, widthOf(figure));
  const full = series.filter((one) => one.points.length > 1);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("aria-label", sentence(series, options));
  if (full.length === 0) {
    svg.replaceChildren(drawn("text", { x: EDGE.left, y: HEIGHT / 2 }, "waiting for numbers"));
    return;
  }
  const scale = scales(full, width, options);
  const bands = series.map((one, k) => drawn("path", { class: `band b${k + 1}`, d: band(one.points, scale) }));
  const lines = series.map((one, k) =>
    drawn("path", { class: `curve k${k + 1}`, d: path(one.points, scale) }),
  );
  svg.replaceChildren(...grid(scale, width, options), ...bands, ...lines);
  legend(figure.querySelector("ul"), series, options);
}

function scales(series, width, { log }) {
  const all = series.flatMap((one) => one.points);
  const xs = all.map((point) => point[0]);
  const ys = all.map(([, y, half = 0]) => y + half).filter((y) => !log || y > 0);
  const highest = Math.max(...ys, log ? 10 : 1e-9);
  const most = log ? 10 ** Math.ceil(Math.log10(highest)) : highest;
  const least = log ? 10 ** Math.floor(Math.log10(Math.max(1, Math.min(...ys, highest)))) : 0;
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const bend = log ? (y) => Math.log10(Math.max(y, least)) : (y) => Math.max(y, 0);
  const span = Math.max(bend(most) - bend(least), 1e-9) * (log ? 1 : 1.1);
  const inner = width - EDGE.left - EDGE.right;
  const tall = HEIGHT - EDGE.top - EDGE.bottom;
  return {
    x0, x1, least, most, log,
    x: (x) => EDGE.left + (inner * (x - x0)) / Math.max(x1 - x0, 1e-9),
    y: (y) => EDGE.top + tall * (1 - (bend(y) - bend(least)) / span),
  };
}

function path(points, scale) {
  return points
    .map(([x, y], k) => `${k ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`)
    .join("");
}

// There and back again; empty where no width is given.
function band(points, scale) {
  if (points.length < 2 || points[0][2] === undefined) return "";
  const upper = points.map(([x, y, half]) => [x, y + half]);
  const lower = points.map(([x, y, half]) => [x, y - half]).reverse();
  return `${path([...upper, ...lower], scale)}Z`;
}

function grid(scale, width, { time, unit = "", x = time ? "time" : "", digits = decimal }) {
  const parts = [drawn("text", { class: "axis", x: 4, y: 12 }, unit)];
  for (const y of ticks(scale)) {
    const at = scale.y(y);
    parts.push(drawn("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }));
    parts.push(drawn("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, digits(y)));
  }
  const name = time ? clock : decimal;
  const bottom = HEIGHT - EDGE.bottom + 16;
  for (const [value, anchor] of [[scale.x0, "start"], [scale.x1, "end"]]) {
    parts.push(drawn("text", { x: scale.x(value), y: bottom, "text-anchor": anchor }, name(value)));
  }
  const middle = (EDGE.left + width - EDGE.right) / 2;
  parts.push(drawn("text", { class: "axis", x: middle, y: bottom, "text-anchor": "middle" }, x));
  return parts;
}

function ticks({ least, most, log }) {
  if (log) {
    const powers = [];
    const step = Math.max(1, Math.ceil(Math.log10(most / least) / 5));
    for (let p = Math.ceil(Math.log10(least)); p <= Math.log10(most) * 1.05; p += step) powers.push(10 ** p);
    return powers;
  }
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return [0, 1, 2, 3, 4, 5].map((k) => k * step).filter((y) => y <= most * 1.1);
}

const latest = (one, digits) => (one.points.length ? digits(one.points.at(-1)[1]) : "–");

function sentence(series, { unit = "", digits = decimal }) {
  return series.map((one) => `${one.name}: ${latest(one, digits)} ${unit}`).join(", ");
}

function legend(list, series, { unit = "", digits = decimal }) {
  const entries = series.map((one, k) => {
    const swatch = drawn("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
    swatch.append(drawn("path", { class: `curve k${k + 1}`, d: "M0 4H26" }));
    return element("li", {}, swatch, `${one.name}: ${latest(one, digits)} ${unit}`);
  });
  list.replaceChildren(...entries);
}

// What happened per second (or per unit of another number) between samples some time apart.
export function rate(samples, of, per, window) {
  const points = [];
  for (let k = 0, from = 0; k < samples.length; k += 1) {
    while (samples[k].t - samples[from].t > window && from < k) from += 1;
    const start = samples[Math.max(0, from - 1)];
    const [rise, run] = [samples[k][of] - start[of], samples[k][per] - start[per]];
    if (rise >= 0 && run > 0) points.push([samples[k].t, rise / run]);
  }
  return points;
}
