// The page of a comparison: scores of all arms, curves, paired differences, stability, cost and tuning.

const VERDICT_KINDS = { Better: "good", Worse: "bad" };
const fixed = (value) => (value === null || value === undefined ? NONE : value.toFixed(3).replace("-", MINUS));
const probability = (p) => (p < 0.001 ? "< 0.001" : fixed(p));
const change = (value) => (value > 0 ? "+" : "") + fixed(value);

// A value with its interval; too few runs have none.
function interval(e, format = fixed) {
  return [el("strong", null, format(e.value)), e.low === null ? null : el("span", { class: "interval" }, ` ${format(e.low)} to ${format(e.high)}`)];
}

function intervalText(e, format = fixed) {
  return e.low === null ? format(e.value) : `${format(e.value)} (${format(e.low)} to ${format(e.high)})`;
}

function armName(data, name) {
  const n = data.arms.findIndex((arm) => arm.name === name);
  return el("span", { class: "legend-entry" }, swatch(n), visible(name));
}

// Values with intervals, one row per arm, and the runs they come from as small dots.
function forest(data, rows, { label, format, zero }) {
  const height = rows.length * 30 + 46;
  const runs = rows.flatMap(({ arm, n, runs }) => runs.map((value) => ({ arm, n, value })));
  const ends = [...rows.flatMap(({ e }) => [e.value, e.low, e.high]), ...runs.map(({ value }) => value)].filter((value) => value !== null);
  const text = visible(`${label}: ${rows.map(({ arm, e }) => `${arm} ${intervalText(e, format)}`).join("; ")}`);
  return lazyChart(height, text, (width) =>
    Plot.plot({
      width,
      height,
      marginLeft: Math.min(180, 24 + 7 * Math.max(...rows.map(({ arm }) => arm.length))),
      marginRight: 20,
      marginTop: 8,
      marginBottom: 36,
      style: { fontSize: "11px" },
      x: { label, labelArrow: "none", labelAnchor: "center", grid: true, nice: true, ticks: 5, domain: zero ? arrays.extent([...ends, 0]) : arrays.extent(ends) },
      y: { label: null, domain: rows.map(({ arm }) => arm), tickFormat: visible },
      marks: [
        zero ? Plot.ruleX([0], { stroke: "currentColor", strokeOpacity: 0.5 }) : null,
        Plot.ruleY(rows.filter(({ e }) => e.low !== null), { y: "arm", x1: (row) => row.e.low, x2: (row) => row.e.high, stroke: (row) => color(row.n), strokeWidth: 2.2 }),
        Plot.dot(runs, { y: "arm", x: "value", stroke: (run) => color(run.n), strokeOpacity: 0.7, r: 2.5 }),
        Plot.dot(rows, { y: "arm", x: (row) => row.e.value, fill: (row) => color(row.n), r: 4.5 }),
        Plot.tip(rows, Plot.pointerY({ y: "arm", x: (row) => row.e.value, title: (row) => `${visible(row.arm)}\n${intervalText(row.e, format)}`, ...TIP })),
      ],
    }),
  );
}

function panel(title, text, ...children) {
  return el("figure", { class: "panel" }, el("figcaption", null, el("h3", null, visible(title)), text ? el("p", null, visible(text)) : null), ...children);
}

function rowTable(label, head, rows) {
  return scrollBox(
    visible(label),
    el(
      "table",
      { class: "plain" },
      el("thead", null, el("tr", null, head.map((cell) => el("th", { scope: "col" }, visible(cell))))),
      el("tbody", null, rows.map(([first, ...rest]) => el("tr", null, el("th", { scope: "row" }, first), rest.map((cell) => el("td", null, cell))))),
    ),
  );
}

function showResult(data) {
  document.title = visible(`${data.study} \u2013 SeeUPO comparison`);
  byId("title").replaceChildren(el("span", { class: "product" }, "SeeUPO"), " ", el("span", { class: "names" }, visible(data.study)));
  const keys = Object.keys(data.metrics);
  const heads = keys.map((key) => data.metrics[key].title + (key === data.primary ? " (primary)" : ""));
  byId("result-card").append(
    el("div", { class: "card-head" }, el("h3", null, visible(data.study))),
    el("p", { class: "sentence" }, visible(data.summary[0].toUpperCase() + data.summary.slice(1) + ".")),
    rowTable("Scores", ["Arm", ...heads, `${data.metrics[data.primary].title}, mean`], data.arms.map((arm) => [armName(data, arm.name), ...keys.map((key) => interval(arm.metrics[key])), interval(arm.metrics[data.primary].mean)])),
    el("p", { class: "hint" }, visible(`Interquartile means over ${plural(data.seeds.length, "seed")}, and the mean of all runs; read the mean where runs end in two groups. ${keys.map((key) => `${data.metrics[key].title}: ${data.metrics[key].help}.`).join(" ")}`)),
    el("ul", { class: "facts" }, data.sentences.map((sentence) => el("li", null, visible(sentence)))),
    el("p", { class: "hint" }, visible(data.statistics)),
  );
  byId("written-by").textContent = visible(`Written by seeupo ${data.versions.seeupo}, training revision ${data.versions.revision}. This file contains everything; nothing is loaded from the network.`);
}

function showArmCurves(data) {
  byId("curves-legend").append(...legend(data.arms.map((arm) => arm.name)));
  const panels = [
    { title: "Training reward", help: "Mean reward of each iteration's trajectories.", key: "reward_curve" },
    { title: data.held_out ? "Held-out score" : "Score", help: `avg@${data.k} on ${data.held_out ? "held-out" : "training"} tasks.`, key: "score_curve" },
  ].map(({ title, help, key }) => {
    const lines = data.arms.map((arm, style) => ({ name: arm.name, points: arm[key], style }));
    return curvePanel({ title, help, unit: "score", iterations: key === "score_curve" ? [0, data.iterations] : [1, data.iterations], lines, ownLegend: false });
  });
  const primary = data.metrics[data.primary];
  const rows = data.arms.map((arm, n) => ({ arm: arm.name, n, e: arm.metrics[data.primary], runs: arm.metrics[data.primary].runs }));
  const few = data.arms.every((arm) => arm.score_curve.length <= 1);
  byId("curves-grid").append(...[panels[0], few ? null : panels[1], panel(primary.title, `${primary.help}: interquartile mean with 95% interval, and each run as a circle`, forest(data, rows, { label: primary.title, format: fixed, zero: false }))].filter((item) => item !== null));
}

function verdictChip(verdict) {
  return el("span", { class: `verdict ${VERDICT_KINDS[verdict] ?? "plain"}` }, verdict);
}

function showDifferences(data) {
  byId("differences-lead").textContent = visible(`Each arm minus ${data.reference}, seed by seed. The probability of improvement compares all pairs of runs. p-values are adjusted for the number of arms.`);
  const position = (name) => data.arms.findIndex((arm) => arm.name === name);
  const runsOf = (name, key) => data.arms[position(name)].metrics[key].runs;
  const perSeed = (row, key) => runsOf(row.arm, key).map((value, n) => value - runsOf(row.reference, key)[n]);
  byId("differences-grid").append(
    ...Object.entries(data.metrics).map(([key, metric]) => {
      const differences = data.comparisons.map((row) => ({ arm: row.arm, n: position(row.arm), ...row.metrics[key], e: row.metrics[key].difference, runs: perSeed(row, key) }));
      return panel(
        metric.title + (key === data.primary ? " (primary)" : ""),
        metric.help,
        el("div", { class: "scores difference" }, forest(data, differences, { label: `difference from ${data.reference}`, format: change, zero: true }), rowTable(
          `Differences in ${metric.title}`,
          ["Arm", "Verdict", "Difference", "p", "Seeds above", "Probability of improvement"],
          differences.map((row) => [armName(data, row.arm), verdictChip(row.verdict), interval(row.e, change), probability(row.p), `${row.seeds_above} of ${data.seeds.length}`, interval(row.probability_of_improvement)]),
        )),
      );
    }),
  );
}

function showStability(data) {
  const { spent, quantity } = data.match;
  const matched = Object.keys(spent).length > 0;
  byId("stability-content").append(
    panel(
      "Stability",
      "Largest drop of the reward, smoothed over 5 iterations, below its best so far. A run has collapsed if it ends below half of its best.",
      rowTable("Stability", ["Arm", "Largest drop", "Worst run", "Collapsed", "Diverged"], data.arms.map((arm) => [armName(data, arm.name), interval(arm.stability.largest_drop), fixed(arm.stability.worst_drop), String(arm.stability.collapsed), String(arm.stability.diverged)])),
    ),
    panel(
      "Cost of a run",
      `Means over seeds; seconds of sampling and updates.${matched ? ` Matched: ${quantity.replace("_", " ")}.` : ""}`,
      rowTable("Cost", ["Arm", "Optimizer steps", "Tokens", "Seconds", ...(matched ? ["Of the target"] : [])], data.arms.map((arm) => [armName(data, arm.name), count(Math.round(arm.cost.optimizer_steps)), count(Math.round(arm.cost.tokens)), num(arm.cost.seconds), ...(matched ? [spent[arm.name].toFixed(2)] : [])])),
    ),
  );
}

const settingText = (pairs) => visible(pairs.map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join(", "));

function showSettings(data) {
  const tried = data.arms.flatMap((arm) =>
    arm.tried.map((trial) => {
      const isTuned = JSON.stringify(trial.settings) === JSON.stringify(arm.tuned);
      return [armName(data, arm.name), settingText(Object.entries(trial.settings)), trial.scores.map(fixed).join(", "), isTuned ? el("strong", null, "chosen") : ""];
    }),
  );
  byId("settings-content").append(
    panel("Settings", "Where each arm differs from the recipe and from its algorithm's defaults.", el("table", null, el("tbody", null, data.arms.map((arm) => el("tr", null, el("th", { scope: "row" }, armName(data, arm.name)), el("td", null, settingText(arm.settings))))))),
    ...(tried.length ? [panel("Tuning", `Reward AUC on the tuning seeds (${data.tuning_seeds.join(", ")}), which are not reported.`, rowTable("Tuning", ["Arm", "Settings", "Reward AUC", ""], tried))] : []),
  );
}

async function buildComparison() {
  listenToTheme();
  const data = await decoded("comparison");
  if (data.format !== "seeupo-comparison" || data.version !== 1) throw new Error(`its data have format ${data.format} ${data.version}; expected seeupo-comparison 1`);
  reveal("result", "curves", "differences", "stability", "settings", "foot");
  showResult(data);
  showArmCurves(data);
  showDifferences(data);
  showStability(data);
  showSettings(data);
  document.documentElement.dataset.ready = "yes";
}

function startComparison() {
  buildComparison().catch((error) => {
    byId("problem").replaceChildren(el("p", { class: "note bad" }, visible(`This page cannot be shown: ${error.message}. Create it again with "seeupo compare".`)));
    throw error;
  });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startComparison);
else startComparison();
