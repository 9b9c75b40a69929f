// Builds the page: the overview first, the rest as it is decoded.

async function buildPage() {
  listenToTheme();
  const overview = await decoded("overview");
  if (overview.format !== "seeupo-report" || overview.version !== 1) throw new Error(`its data have format ${overview.format} ${overview.version}; expected seeupo-report 1`);
  enhanceCharts(overview);
  const index = new Index(await decoded("index"), overview.runs);
  reveal("trajectories", "compare");
  byId("kept").append(...overview.runs.map((run) => el("p", { class: "lead" }, overview.runs.length > 1 ? el("strong", null, visible(`${run.name}: `)) : null, visible(run.trajectories.note))));
  const list = new List(index);
  const viewer = new Viewer(index, list);
  showComparison(index);
  listenToKeys(list, viewer);
  addEventListener("hashchange", () => follow(index, viewer));
  if (location.hash.includes("run=")) follow(index, viewer);
  else if (location.hash.length > 1) byId(location.hash.slice(1))?.scrollIntoView();
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
}

function start() {
  buildPage().catch((error) => {
    byId("problem").replaceChildren(el("p", { class: "note bad" }, visible(`This report cannot be shown: ${error.message}. Create it again with "seeupo report".`)));
    throw error;
  });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
