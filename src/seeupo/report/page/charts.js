// Charts, drawn by Observable Plot when they come near the viewport, and again when their width changes.

const CHART_HEIGHT = 190;
const TIP = { lineHeight: 1.3, fontSize: 12, textPadding: 9 };
const DASHES = ["none", "7 3", "2 3", "9 3 2 3", "14 3", "5 2", "1 4"];
const color = (n) => `var(--series-${n % 7})`;
// Shifted by one in each round of colors, so that no two of 49 lines look alike.
const dash = (n) => DASHES[(n + Math.floor(n / 7)) % DASHES.length];

const nearViewport = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) target.draw();
  },
  { rootMargin: "300px" },
);
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.drawnWidth) requestAnimationFrame(() => target.draw());
});

// Charts outside of the viewport are drawn when the browser is idle, for printing.
function whenIdle(work) {
  if ("requestIdleCallback" in window) requestIdleCallback(work);
  else setTimeout(work, 500);
}

// A chart that is drawn later. Its height is reserved, so that nothing moves then.
function lazyChart(height, label, draw) {
  const box = el("div", { class: "chart", role: "img", "aria-label": label });
  box.style.minHeight = `${height}px`;
  box.draw = () => {
    const width = Math.floor(box.clientWidth);
    if (width === 0 || width === box.drawnWidth) return;
    box.drawnWidth = width;
    const chart = draw(width);
    chart.setAttribute("aria-hidden", "true"); // the box has a label
    box.replaceChildren(chart);
  };
  nearViewport.observe(box);
  whenIdle(box.draw);
  resized.observe(box);
  return box;
}

function swatch(n) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("viewBox", "0 0 28 10");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [key, value] of [["x1", 0], ["x2", 28], ["y1", 5], ["y2", 5], ["stroke-width", 2.5]]) line.setAttribute(key, value);
  line.style.stroke = color(n);
  line.style.strokeDasharray = dash(n);
  svg.append(line);
  return svg;
}

function legend(names) {
  return names.map((name, n) => el("span", { class: "legend-entry" }, swatch(n), visible(name)));
}

// Panels of small multiples. The series of one run share a chart; with several runs, each series has a chart with all runs.
function panelsOf(runs) {
  if (runs.length === 1) {
    return runs[0].curves.map((curve) => ({ ...curve, lines: curve.series.map(({ name, points }, style) => ({ name, points, style })) }));
  }
  const panels = new Map();
  const curves = arrays.group(runs.flatMap((run) => run.curves), (curve) => curve.key);
  const seriesOf = (key) => new Set(curves.get(key).flatMap((curve) => curve.series.map((series) => series.name)));
  runs.forEach((run, style) => {
    for (const curve of run.curves) {
      for (const { name, points } of curve.series) {
        const key = JSON.stringify([curve.key, name]);
        const title = seriesOf(curve.key).size === 1 ? curve.title : `${curve.title}: ${name}`;
        if (!panels.has(key)) panels.set(key, { ...curve, title, lines: [] });
        panels.get(key).lines.push({ name: run.name, points, style });
      }
    }
  });
  // The series of a curve stay together, in the order of the first run that has the curve.
  const order = [...new Set(runs.flatMap((run) => run.curves.map((curve) => curve.key)))];
  return [...panels.values()].sort((a, b) => order.indexOf(a.key) - order.indexOf(b.key));
}

function curvePanel(panel) {
  const lines = panel.lines.filter((line) => line.points.some((point) => point[1] !== null));
  if (lines.length === 0) return null;
  const several = lines.length > 1;
  const chart = lazyChart(CHART_HEIGHT, summaryOf(panel, lines), (width) => curveChart(panel, lines, width));
  return el(
    "figure",
    { class: "panel" },
    el("figcaption", null, el("h3", null, visible(panel.title)), el("p", null, visible(panel.help))),
    el("div", { class: "legend inside" }, several && panel.ownLegend ? lines.map((line) => el("span", { class: "legend-entry" }, swatch(line.style), visible(line.name))) : null),
    chart,
    numbers(panel.title, () => curveTable(panel, lines)),
  );
}

// The values of a chart, in a table that is made when it is opened.
function numbers(title, makeTable) {
  const details = el("details", { class: "numbers" }, el("summary", null, "Values"));
  const show = () => details.childElementCount === 1 && details.append(el("div", { class: "scroll low", role: "region", tabindex: "0", "aria-label": visible(`Values of ${title}`) }, makeTable()));
  details.addEventListener("toggle", show);
  return details;
}

function summaryOf(panel, lines) {
  const parts = lines.map((line) => {
    const points = line.points.filter((point) => point[1] !== null);
    const [first, last] = [points[0], points.at(-1)];
    const from = `${inUnit(first[1], panel.unit)} at iteration ${first[0]}`;
    return first === last ? `${line.name} ${from}` : `${line.name} from ${from} to ${inUnit(last[1], panel.unit)} at iteration ${last[0]}`;
  });
  return visible(`${panel.title}: ${parts.join("; ")}`);
}

function curveTable(panel, lines) {
  const rows = lines.flatMap((line) =>
    line.points.map(([iteration, value, low, high]) => [
      visible(line.name),
      iteration,
      inUnit(value, panel.unit),
      low === null || high === null ? NONE : `${inUnit(low, panel.unit)} to ${inUnit(high, panel.unit)}`,
    ]),
  );
  return table(["Series", "Iteration", "Value", "95% interval"], rows, { class: "plain" });
}

function curveChart(panel, lines, width) {
  const points = lines.flatMap((line) =>
    line.points.map(([x, y, low, high]) => ({ x, y: y ?? NaN, low: low ?? NaN, high: high ?? NaN, line })),
  );
  const values = points.flatMap(({ y, low, high }) => [y, low, high]).filter(Number.isFinite);
  const positive = values.filter((value) => value > 0);
  // A logarithmic scale has ticks at powers of ten only; a narrow range is clearer on a linear one.
  const log = panel.unit === "log" && positive.length > 0 && arrays.max(positive) / arrays.min(positive) > 30 && points.every(({ y }) => Number.isNaN(y) || y > 0);
  if (log) {
    const floor = arrays.min(points, (point) => point.y) / 3;
    for (const point of points) if (point.low <= 0) point.low = floor;
  }
  const [first, last] = panel.iterations;
  const y = { label: null, grid: true, nice: true, ticks: 4, tickFormat: (value) => num(value) };
  if (panel.unit === "share") y.domain = [Math.min(0, arrays.min(values)), Math.max(1, arrays.max(values))];
  if (panel.unit === "seconds" || panel.unit === "tokens") y.zero = true;
  if (log) {
    const powers = arrays.range(Math.floor(Math.log10(arrays.min(positive))), Math.ceil(Math.log10(arrays.max(positive))) + 1);
    Object.assign(y, { type: "log", nice: false, domain: [10 ** powers[0], 10 ** powers.at(-1)], ticks: powers.map((power) => 10 ** power) });
  }
  if (new Set(values).size === 1 && !y.domain && !log) y.domain = values[0] === 0 ? [-1, 1] : [values[0] - Math.abs(values[0]), values[0] + Math.abs(values[0])].sort((a, b) => a - b);
  const marks = lines.flatMap((line) => {
    const linePoints = points.filter((point) => point.line === line);
    const valued = linePoints.filter((point) => Number.isFinite(point.y));
    const few = valued.length <= Math.min(25, width / 12);
    return [
      Plot.areaY(linePoints, { x: "x", y1: "low", y2: "high", fill: color(line.style), fillOpacity: 0.16 }),
      valued.length <= 6 ? Plot.ruleX(valued, { x: "x", y1: "low", y2: "high", stroke: color(line.style), strokeOpacity: 0.55, filter: (point) => Number.isFinite(point.low) && Number.isFinite(point.high) }) : null,
      Plot.line(linePoints, { x: "x", y: "y", stroke: color(line.style), strokeWidth: 1.8, strokeDasharray: dash(line.style) }),
      few ? Plot.dot(valued, { x: "x", y: "y", r: valued.length === 1 ? 4.5 : 2.8, fill: color(line.style) }) : null,
    ];
  });
  const title = ({ x, y: value, low, high, line }) =>
    `${visible(line.name)}\niteration ${x}: ${inUnit(value, panel.unit)}` +
    (Number.isFinite(low) && Number.isFinite(high) ? `\n95% interval ${inUnit(low, panel.unit)} to ${inUnit(high, panel.unit)}` : "");
  return Plot.plot({
    width,
    height: CHART_HEIGHT,
    marginLeft: 46,
    marginRight: 14,
    marginTop: 10,
    marginBottom: 34,
    style: { fontSize: "11px" },
    x: {
      label: "iteration",
      labelArrow: "none",
      domain: first === last ? [first - 1, last + 1] : [first, last],
      ticks: Math.min(6, Math.max(1, last - first)),
      tickFormat: (value) => (Number.isInteger(value) && value >= first && value <= last ? String(value) : ""),
    },
    y,
    marks: [...marks, Plot.tip(points.filter((point) => Number.isFinite(point.y)), Plot.pointer({ x: "x", y: "y", title, maxRadius: 60, ...TIP }))],
  });
}

function showCurves(runs) {
  const several = runs.length > 1;
  byId("curves-legend").append(...(several ? legend(runs.map((run) => run.name)) : []));
  const iterations = arrays.extent(runs.flatMap((run) => run.curves.flatMap((curve) => curve.series.flatMap((series) => series.points.map((point) => point[0])))));
  const panels = panelsOf(runs).map((panel) => curvePanel({ ...panel, iterations, ownLegend: !several })).filter((panel) => panel !== null);
  byId("curves-grid").append(...(panels.length ? panels : [el("p", { class: "note" }, "There are no metrics by iteration: the run stopped before its first iteration ended, or metrics.jsonl is missing.")]));
}
