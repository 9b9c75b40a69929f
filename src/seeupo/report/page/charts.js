// What scripts add to charts, which are in the page as SVG: tooltips and tables of values.

const STYLES = 7;
const REACH = 60; // pixels

function styleClass(n) {
  return `s${n % STYLES} d${(n + Math.floor(n / STYLES)) % STYLES}`;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function swatch(n) {
  return svg("svg", { class: "swatch", viewBox: "0 0 28 10", "aria-hidden": "true" }, svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, class: `line ${styleClass(n)}` }));
}

// Charts name their data by paths in the overview: ["runs", 0, "curves", 2, "series", 1].
function enhanceCharts(data) {
  const at = (path) => path.reduce((value, key) => value[key], data);
  for (const box of document.querySelectorAll(".chart[data-lines]")) {
    const names = [...(box.parentElement.querySelectorAll(".legend-entry") ?? [])].map((entry) => entry.textContent);
    const lines = JSON.parse(box.dataset.lines).map(([path, unit], n) => {
      const value = at(path);
      const name = names[n] ?? (path[0] === "runs" && data.runs.length === 1 ? value.name : at(path.slice(0, 2)).name);
      return { name: visible(name), unit, points: Array.isArray(value) ? value : value.points };
    });
    const [x0, x1, y0, y1, log] = JSON.parse(box.dataset.domain);
    const scale = (value) => (log ? (Math.log(value) - Math.log(y0)) / (Math.log(y1) - Math.log(y0)) : (value - y0) / (y1 - y0));
    listenToPointer(box, () => lines.flatMap((line) => line.points.filter((point) => point[1] !== null).map((point) => ({ x: (point[0] - x0) / (x1 - x0), y: 1 - scale(point[1]), text: () => pointText(line, point) }))));
    addValues(box, () => linesTable(lines));
  }
  for (const box of document.querySelectorAll(".chart[data-map]")) {
    const map = at(JSON.parse(box.dataset.map));
    const [first, last, turns] = JSON.parse(box.dataset.domain);
    const cells = map.cells.filter((cell) => cell[2] !== null);
    listenToPointer(box, () => cells.map((cell) => ({ x: (cell[0] - first + 0.5) / (last - first + 1), y: (cell[1] - 0.5) / turns, text: () => cellText(map, cell) })));
    addValues(box, () => table(["Iteration", "Turn", "Value", "Updated"], cells.map(([iteration, turn, value, position]) => [iteration, turn, num(value, 4), position === null ? "together" : ordinal(position)]), { class: "plain" }));
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(byId(button.dataset.copy).textContent, button.dataset.what));
  }
}

function pointText(line, [iteration, value, low, high]) {
  const interval = low === null || high === null ? "" : `\n95% interval ${inUnit(low, line.unit)} to ${inUnit(high, line.unit)}`;
  return `${line.name}\niteration ${iteration}: ${inUnit(value, line.unit)}${interval}`;
}

function cellText(map, [iteration, turn, value, position]) {
  return `iteration ${iteration}, turn ${turn}\n${visible(map.title)}: ${num(value, 4)}${position === null ? "" : `\nupdated ${ordinal(position)}`}`;
}

// A tooltip at the point nearest to the pointer; points are shares of the plot, made when the pointer first enters it.
function listenToPointer(box, makePoints) {
  const plot = box.querySelector(".plot");
  let points = null;
  let tip = null;
  box.addEventListener("pointermove", (event) => {
    points ??= makePoints();
    const { left, top, width, height } = plot.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    let nearest = null;
    let distance = REACH;
    for (const point of points) {
      const apart = Math.hypot(point.x * width - x, point.y * height - y);
      if (apart <= distance) [nearest, distance] = [point, apart];
    }
    tip?.remove();
    tip = null;
    if (nearest === null) return;
    const dot = el("span", { class: "tip-dot" });
    const text = el("span", { class: "tip" }, nearest.text());
    tip = el("div", { class: "tip-place", "aria-hidden": "true" }, dot, text);
    const corner = box.getBoundingClientRect();
    tip.style.left = `${left - corner.left + nearest.x * width}px`;
    tip.style.top = `${top - corner.top + nearest.y * height}px`;
    tip.classList.toggle("left", nearest.x > 0.5);
    box.append(tip);
  });
  box.addEventListener("pointerleave", () => {
    tip?.remove();
    tip = null;
  });
}

// The values of a chart, in a table that is made when it is opened.
function addValues(box, makeTable) {
  const label = `Values of ${box.parentElement.querySelector("h3").textContent}`;
  const details = el("details", { class: "numbers" }, el("summary", null, "Values"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(el("div", { class: "scroll low", role: "region", tabindex: "0", "aria-label": label }, makeTable()));
  });
  box.parentElement.append(details);
}

function linesTable(lines) {
  const rows = lines.flatMap((line) =>
    line.points.map(([iteration, value, low, high]) => [
      line.name,
      iteration,
      inUnit(value, line.unit),
      low === null || high === null ? NONE : `${inUnit(low, line.unit)} to ${inUnit(high, line.unit)}`,
    ]),
  );
  return table(["Series", "Iteration", "Value", "95% interval"], rows, { class: "plain" });
}
