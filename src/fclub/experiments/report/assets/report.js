"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const options = { responsive: true, displaylogo: false, displayModeBar: false };
for (const place of document.querySelectorAll(".chart")) {
  const { data, layout } = charts[place.dataset.chart];
  Plotly.newPlot(place, data, layout, options);
}
for (const button of document.querySelectorAll("button[data-view]")) {
  button.addEventListener("click", () => {
    Plotly.relayout(`chart-${button.dataset.chart}`, JSON.parse(button.dataset.view));
  });
}
