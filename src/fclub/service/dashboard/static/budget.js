// What was spent of a privacy budget, as both pages tell it.

import { decimal, put } from "./show.js";

export const percent = (share) => `${decimal(100 * share)} %`;

export function meter(share, label) {
  const found = document.createElement("meter");
  Object.assign(found, { max: 1, value: share, high: 0.9 });
  found.setAttribute("aria-label", label);
  return found;
}

// Shows what is claimed, or that nothing is; returns how a cost is told, or null.
export function showBudget(privacy) {
  document.getElementById("no-privacy").hidden = privacy !== null;
  document.getElementById("privacy").hidden = privacy === null;
  if (privacy === null) return null;
  const [epsilon, delta] = privacy.claimed;
  put("claimed", `ε = ${epsilon}, δ = ${delta}`);
  return (cost) =>
    `${percent(cost.share)} of the budget (ε = ${decimal(cost.epsilon)} at δ = ${delta}, ${decimal(cost.strict)} at 0.00001)`;
}
