// Whether a policy learns: what visitors lose or earn per visit, of late, with a band of two deviations.

import { chart } from "./chart.js";
import { around, count, decimal, put } from "./show.js";

const LEAST = 200; // visits in a window
const SHARE = 0.2; // of all visits so far

// Means over the last visits before each sample: [x, mean, half the width of its 95 % band].
function recent(samples, of, squares, visits) {
  const points = [];
  for (let k = 0, from = 0; k < samples.length; k += 1) {
    const now = samples[k];
    const window = Math.max(LEAST, SHARE * now[visits]);
    while (from + 1 < k && now[visits] - samples[from + 1][visits] >= window) from += 1;
    const start = samples[from];
    const number = now[visits] - start[visits];
    if (number < LEAST / 4 || now[visits] < start[visits]) continue;
    const mean = (now[of] - start[of]) / number;
    const variance = Math.max(0, (now[squares] - start[squares]) / number - mean * mean);
    points.push([now[visits], mean, 2 * Math.sqrt(variance / number)]);
  }
  return points;
}

const told = (samples, key) => samples.filter((one) => one[key] !== undefined);
const last = (points) => points.at(-1);
const banded = ([, mean, half]) => around(mean, half);

// With simulated visitors regret is known; otherwise the rewards that the application reports are.
export function showLearning(samples, visitors, policy) {
  const figure = document.getElementById("learning");
  if (visitors === null) {
    if (samples.length && samples.at(-1).reward === undefined) {
      put("verdict", "Local servers know their rewards: see their pages. Here simulated visitors would be compared.");
      figure.hidden = true;
      return;
    }
    const points = recent(told(samples, "squares"), "reward", "squares", "feedback");
    chart(figure, [{ name: policy, points }], { x: "visits with a reward", unit: "reward per visit, from 0 to 1" });
    const none = `Needs ${LEAST / 4} rewards. `;
    const now = points.length ? `The recent reward per visit is ${banded(last(points))}. ` : none;
    put("verdict", `${now}The comparison with one model per user is available for simulated visitors only.`);
    return;
  }
  figure.hidden = false;
  const series = Object.keys(visitors.policies).map((name) => ({
    name: name === "linucb" ? "one model per user" : name,
    points: recent(told(samples, `squares of ${name}`), `regret of ${name}`, `squares of ${name}`, "visits"),
  }));
  const [own, rival, chance] = series;
  chart(figure, [own, rival].filter(Boolean), { x: "visits", unit: "regret per visit" });
  put("verdict", verdict(own, rival, chance, visitors.visits));
}

function verdict(own, rival, chance, visits) {
  if (!own?.points.length) return `Needs ${LEAST / 4} visits; ${count(visits)} so far.`;
  const now = `After ${count(visits)} visits the recent regret per visit is ${banded(last(own.points))}`;
  if (!rival?.points.length) return `${now}.`;
  const [, a, x] = last(own.points);
  const [, b, y] = last(rival.points);
  const gap = Math.round(100 * Math.abs(1 - a / Math.max(b, 1e-9)));
  const clear = Math.abs(a - b) > Math.hypot(x, y);
  const word = a < b ? `${gap} % less` : `${gap} % more`;
  const compared = clear ? `That is ${word}` : "The difference is within the band";
  const random = chance?.points.length ? `; random choice has ${decimal(last(chance.points)[1])}` : "";
  return `${now}, and with one model per user ${banded(last(rival.points))}. ${compared}${random}.`;
}
