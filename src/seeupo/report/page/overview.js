// The top of the page: verdict, scores, warnings and details of each run.

const VERDICT_SIGNS = { improved: ["\u2191", "good"], no_change: ["\u2248", "plain"], regressed: ["\u2193", "bad"], inconclusive: ["?", "plain"] };
const WARNINGS_SHOWN = 5;

function showOverview(overview) {
  const { runs } = overview;
  const names = runs.map((run) => run.name).join(", ");
  document.title = visible(`${names} \u2013 SeeUPO report`);
  byId("title").replaceChildren(el("span", { class: "product" }, "SeeUPO"), " ", el("span", { class: "names", title: visible(names) }, visible(names)));
  byId("cards").classList.toggle("several", runs.length > 1);
  byId("cards").append(...runs.map((run, n) => card(run, n, runs.length > 1)));
  byId("written-by").textContent = visible(`Written by ${overview.written_by}. This file contains everything; nothing is loaded from the network.`);
}

function card(run, n, several) {
  const [sign, kind] = VERDICT_SIGNS[run.verdict];
  return el(
    "article",
    { class: "card", "aria-labelledby": `run-${n}` },
    el(
      "div",
      { class: "card-head" },
      el("h3", { id: `run-${n}` }, several ? swatch(n) : null, visible(run.name)),
      el("span", { class: `verdict ${kind}` }, el("span", { "aria-hidden": "true" }, `${sign} `), visible(run.verdict_label)),
    ),
    el("p", { class: "trained" }, visible(`${run.model} on ${run.environment}, trained with ${run.algorithm}`)),
    el("p", { class: "sentence" }, visible(run.sentence)),
    run.scores.some((score) => score.before || score.after) ? scores(run) : null,
    run.missing.length ? el("div", { class: "note" }, el("h4", null, "Missing or damaged"), el("ul", null, run.missing.map((text) => el("li", null, visible(text))))) : null,
    warnings(run),
    run.command ? el("div", { class: "command" }, el("h4", null, "Command to repeat the run"), el("div", { class: "command-line" }, el("code", { tabindex: "0" }, visible(run.command)), copyButton("Copy", "Command", () => run.command))) : null,
    run.details.length ? el("details", { class: "run-details", open: !several }, el("summary", null, "Run details"), el("dl", null, run.details.map(([label, value]) => el("div", null, el("dt", null, visible(label)), el("dd", null, visible(value)))))) : null,
  );
}

function estimate(e, format = num) {
  if (e === null) return NONE;
  return [el("strong", null, format(e.value)), el("span", { class: "interval" }, ` ${format(e.low)} to ${format(e.high)}`)];
}

function scores(run) {
  const rows = run.scores.filter((score) => score.before || score.after);
  const fixed = (value) => value.toFixed(3).replace("-", MINUS);
  const change = (value) => (value > 0 ? "+" : "") + fixed(value);
  return el(
    "div",
    { class: "scores" },
    lazyChart(rows.length * 46 + 30, visible(rows.map((score) => `${score.name}: before ${score.before ? fixed(score.before.value) : "unknown"}, after ${score.after ? fixed(score.after.value) : "unknown"}`).join("; ")), (width) => scoreChart(rows, width)),
    scrollBox(
      visible(`Scores of ${run.name}`),
      el(
        "table",
        { class: "plain" },
        el("caption", null, "Held-out tasks, with 95% intervals"),
        el("thead", null, el("tr", null, ["Score", "Before", "After", "Difference"].map((cell) => el("th", { scope: "col" }, cell)))),
        el("tbody", null, rows.map((score) => el("tr", null, el("th", { scope: "row" }, visible(score.name)), el("td", null, estimate(score.before, fixed)), el("td", null, estimate(score.after, fixed)), el("td", null, estimate(score.difference, change))))),
      ),
    ),
  );
}

function scoreChart(rows, width) {
  const points = rows.flatMap((score) => [
    score.before ? { name: score.name, when: "before", ...score.before } : null,
    score.after ? { name: score.name, when: "after", ...score.after } : null,
  ]).filter((point) => point !== null);
  const moves = rows.filter((score) => score.before && score.after);
  const all = points.flatMap((point) => [point.low, point.high]);
  const title = (point) => `${visible(point.name)} ${point.when}: ${point.value.toFixed(3)}\n95% interval ${point.low.toFixed(3)} to ${point.high.toFixed(3)}`;
  const side = (when) => points.filter((point) => point.when === when);
  const label = (when, dy) => Plot.text(side(when).filter((point) => point.name === rows[0].name), { x: "value", y: "name", text: () => when, dy, fill: "currentColor" });
  return Plot.plot({
    width,
    height: rows.length * 46 + 30,
    marginLeft: 62,
    marginRight: 18,
    marginTop: 8,
    marginBottom: 22,
    style: { fontSize: "11px" },
    x: { domain: [Math.min(0, ...all), Math.max(1, ...all)], label: null, grid: true, ticks: 5 },
    y: { label: null, domain: rows.map((score) => score.name), tickSize: 0, tickFormat: (name) => visible(name) },
    marks: [
      Plot.arrow(moves, { x1: (score) => score.before.value, x2: (score) => score.after.value, y: "name", stroke: "var(--muted)", strokeWidth: 1.2, inset: 8, headLength: 6 }),
      Plot.ruleY(side("before"), { x1: "low", x2: "high", y: "name", stroke: "var(--before)", strokeWidth: 5, strokeOpacity: 0.35 }),
      Plot.ruleY(side("after"), { x1: "low", x2: "high", y: "name", stroke: "var(--after)", strokeWidth: 5, strokeOpacity: 0.35 }),
      Plot.dot(side("before"), { x: "value", y: "name", r: 5, stroke: "var(--before)", strokeWidth: 2, fill: "var(--surface)" }),
      Plot.dot(side("after"), { x: "value", y: "name", r: 5.5, fill: "var(--after)" }),
      label("before", -14),
      label("after", 15),
      Plot.tip(points, Plot.pointer({ x: "value", y: "name", title, maxRadius: 30, ...TIP })),
    ],
  });
}

function warnings(run) {
  if (run.warnings.length === 0) return null;
  const item = (warning) => el("li", null, warning.iteration === null ? null : el("span", { class: "when" }, `Iteration ${warning.iteration}: `), visible(warning.text.charAt(0).toUpperCase() + warning.text.slice(1)));
  const rest = run.warnings.slice(WARNINGS_SHOWN);
  return el(
    "div",
    { class: "note warn" },
    el("h4", null, plural(run.warnings.length, "warning")),
    el("ul", null, run.warnings.slice(0, WARNINGS_SHOWN).map(item)),
    rest.length ? el("details", null, el("summary", null, `${count(rest.length)} more`), el("ul", null, rest.map(item))) : null,
  );
}
