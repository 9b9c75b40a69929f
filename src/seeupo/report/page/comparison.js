// Tooltips, tables of values and the theme of a comparison; the page itself needs no script.

async function enhanceComparison() {
  listenToTheme();
  enhanceCharts(await decoded("comparison"));
  document.documentElement.dataset.ready = "yes";
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", enhanceComparison);
else enhanceComparison();
