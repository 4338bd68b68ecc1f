// What was promised and spent of a privacy budget, as both pages tell it.

import { decimal, put } from "./show.js";

const STRICT = 1e-5;
export const percent = (share) => `${decimal(100 * share)} %`;

export function meter(share, label) {
  const found = document.createElement("meter");
  Object.assign(found, { max: 1, value: share });
  found.setAttribute("aria-label", label);
  return found;
}

// Shows what is promised, if anything is; returns how a cost is told, or null.
export function showPromise(privacy) {
  document.getElementById("privacy").hidden = privacy === null;
  if (privacy === null) return null;
  const [epsilon, delta] = privacy.claimed;
  put("claimed", `ε = ${epsilon}, δ = ${delta}`);
  put("covers", privacy.covers);
  return (cost) => {
    const strict = delta === STRICT ? "" : `, ${decimal(cost.strict)} at ${STRICT}`;
    return `${percent(cost.share)} of the budget (ε = ${decimal(cost.epsilon)} at δ = ${delta}${strict})`;
  };
}
