// Heat maps of turns by iterations, with the order in which the turns of an iteration were updated.

const ROW_HEIGHT = 22;
const COLORED = { sequential: 0.98, diverging: 0.9 }; // share of the cells within the color scale
const SEQUENTIAL = (share) => d3.interpolateCividis(0.1 + 0.9 * share); // its darkest end would vanish on a dark page
// Orange is less and blue is more, as for tokens. Both ends are dark, so that lightness shows the distance from the center.
const DIVERGING = d3.piecewise(d3.interpolateLab, ["#9a4a00", "#e08a2e", "#f4f1ec", "#5aa5d6", "#07508a"]);

function orderOf(cells) {
  const byIteration = arrays.group(cells, (cell) => cell.iteration);
  const is = (sign) =>
    [...byIteration.values()].every((list) => arrays.sort(list, (cell) => cell.turn).every((cell, n, sorted) => n === 0 || sign * (cell.position - sorted[n - 1].position) > 0));
  if (cells.some((cell) => cell.position === null)) return "together";
  if (!cells.length || new Set(cells.map((cell) => cell.turn)).size < 2) return "single";
  if (is(-1)) return "reverse";
  return is(1) ? "natural" : "mixed";
}

function mapPanel(map) {
  const cells = map.cells
    .map(([iteration, turn, value, position]) => ({ iteration, turn, value, position }))
    .filter((cell) => cell.value !== null);
  if (cells.length === 0) return null;
  const turns = arrays.max(cells, (cell) => cell.turn);
  const height = turns * Math.max(ROW_HEIGHT, 88 / turns) + 44;
  const order = orderOf(cells);
  const [low, high] = arrays.extent(cells, (cell) => cell.value);
  const color = mapColor(map, cells);
  const beyond = low < color.domain[0] - 1e-12 || high > color.domain[1] + 1e-12;
  const label = visible(`${map.title} by turn and iteration, from ${num(low)} to ${num(high)}`);
  return el(
    "figure",
    { class: "panel" },
    el("figcaption", null, el("h3", null, visible(map.title)), el("p", null, visible(map.help))),
    lazyChart(46, `Colors: ${label}`, () => mapLegend(map, color)),
    lazyChart(height, label, (width) => mapChart(map, cells, { width, height, turns, order, color })),
    beyond ? el("p", { class: "hint" }, `The color scale covers ${num(color.domain[0])} to ${num(color.domain[1])}; values range from ${num(low)} to ${num(high)}.`) : null,
    absent(cells, ...arrays.extent(cells, (cell) => cell.iteration), turns).length ? el("p", { class: "hint" }, "A dot means that no attempt reached this turn, or that none of them had an advantage.") : null,
    order === "mixed" ? el("p", { class: "hint" }, "The update order differs between iterations: point at a cell to see it.") : null,
    numbers(map.title, () => table(["Iteration", "Turn", "Value", "Updated"], cells.map(({ iteration, turn, value, position }) => [iteration, turn, num(value, 4), position === null ? "together" : ordinal(position)]), { class: "plain" })),
  );
}

// A few extreme cells (a late turn with one attempt) would use up the scale, so it ends before them.
function mapColor(map, cells) {
  const values = cells.map((cell) => cell.value);
  const linear = { type: "linear", clamp: true };
  if (map.scale === "diverging") {
    const center = map.center ?? 0;
    const far = values.map((value) => Math.abs(value - center));
    const reach = arrays.quantile(far, COLORED.diverging) || arrays.max(far) || 1e-3;
    return { ...linear, domain: [center - reach, center + reach], interpolate: DIVERGING };
  }
  const [low, high] = arrays.extent(values);
  const end = arrays.quantile(values, COLORED.sequential);
  return { ...linear, domain: [low, end > low ? end : high > low ? high : low + (Math.abs(low) || 1)], interpolate: SEQUENTIAL };
}

function mapLegend(map, color) {
  return Plot.legend({ color: { ...color, label: map.scale === "diverging" ? `below and above ${num(map.center ?? 0)}` : null }, width: 240, height: 44, marginTop: 16, marginLeft: 8, ticks: 4, tickFormat: (value) => num(value, 4) });
}

function mapChart(map, cells, { width, height, turns, order, color }) {
  const [first, last] = arrays.extent(cells, (cell) => cell.iteration);
  const arrows = order === "reverse" || order === "natural";
  const marginRight = arrows ? 78 : 12;
  const cellWidth = (width - 46 - marginRight) / (last - first + 1);
  const inset = cellWidth > 6 ? 0.5 : 0;
  const title = ({ iteration, turn, value, position }) =>
    `iteration ${iteration}, turn ${turn}\n${visible(map.title)}: ${num(value, 4)}${position === null ? "" : `\nupdated ${ordinal(position)}`}`;
  const down = order === "natural";
  const sweep = arrows
    ? [
        Plot.arrow([0], { x: last + 0.5, y1: down ? 1 : turns, y2: down ? turns : 1, dx: 14, stroke: "currentColor", strokeWidth: 1.5, headLength: 7 }),
        Plot.text([[down ? 1 : turns, "updated\nfirst"], [down ? turns : 1, "last"]], { x: last + 0.5, y: "0", text: "1", dx: 24, textAnchor: "start", lineAnchor: "middle", clip: false }),
      ]
    : [];
  return Plot.plot({
    width,
    height,
    marginLeft: 46,
    marginRight,
    marginTop: 6,
    marginBottom: 36,
    style: { fontSize: "11px" },
    color,
    x: { label: "iteration", labelArrow: "none", domain: [first - 0.5, last + 0.5], ticks: Math.min(8, last - first + 1), tickFormat: (value) => (Number.isInteger(value) ? String(value) : "") },
    y: { label: null, domain: [turns + 0.5, 0.5], reverse: false, ticks: arrays.range(1, turns + 1), tickFormat: (turn) => `turn ${turn}`, tickSize: 0, range: [height - 36, 6] },
    marks: [
      Plot.rect(cells, { x1: (cell) => cell.iteration - 0.5, x2: (cell) => cell.iteration + 0.5, y1: (cell) => cell.turn - 0.5, y2: (cell) => cell.turn + 0.5, fill: "value", inset }),
      Plot.dot(absent(cells, first, last, turns), { x: "0", y: "1", r: Math.min(1.5, cellWidth / 5), fill: "var(--muted)" }),
      ...sweep,
      Plot.tip(cells, Plot.pointer({ x: "iteration", y: "turn", title, maxRadius: 30, ...TIP })),
    ],
  });
}

// [iteration, turn] of cells without a value, which must not look like a pale one.
function absent(cells, first, last, turns) {
  const there = new Set(cells.map((cell) => `${cell.iteration}/${cell.turn}`));
  const all = arrays.range(first, last + 1).flatMap((iteration) => arrays.range(1, turns + 1).map((turn) => [iteration, turn]));
  return all.filter(([iteration, turn]) => !there.has(`${iteration}/${turn}`));
}

function showTurns(runs) {
  const grid = byId("turns-grid");
  const show = (n) => {
    const together = runs[n].turn_maps.some((map) => map.cells.some((cell) => cell[3] === null));
    byId("turns-order").textContent = together ? "All turns of an iteration are updated together." : "The turns of an iteration are updated one after another, in the direction of the arrow.";
    const panels = runs[n].turn_maps.map(mapPanel).filter((panel) => panel !== null);
    grid.replaceChildren(...(panels.length ? panels : [el("p", { class: "note" }, "This run has no metrics by turn: its algorithm does not update turn by turn, or it stopped before the first update.")]));
  };
  if (runs.length > 1) {
    const choice = select(runs.map((run, n) => [n, visible(run.name)]), { id: "turns-run", change: (event) => show(Number(event.target.value)) });
    byId("turns-choice").append(labeled("Run", choice));
  }
  show(0);
}
