// Filters, and the list of matching trajectories.

const PAGE = 50;
const TASKS_OFFERED = 500;
const ORDERS = {
  sampled: ["As sampled", (columns) => (i) => columns.phase[i]], // training first, because it has credit
  "advantage-down": ["Advantage, largest first", (columns) => (i) => -(columns.advantage[i] ?? -Infinity)],
  "advantage-up": ["Advantage, smallest first", (columns) => (i) => columns.advantage[i] ?? Infinity],
  "reward-down": ["Reward, largest first", (columns) => (i) => -(columns.reward[i] ?? -Infinity)],
  "reward-up": ["Reward, smallest first", (columns) => (i) => columns.reward[i] ?? Infinity],
  "turns-down": ["Turns, most first", (columns) => (i) => -columns.turns[i]],
};

class List {
  constructor(index) {
    this.index = index;
    this.matches = this.filtered({});
    this.places = null;
    this.search = 0;
    this.renderedRows = 0;
    this.form = byId("filters");
    this.form.append(...this.fields());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    let typing = 0;
    this.form.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.apply(), 120);
    });
    this.form.addEventListener("reset", () => setTimeout(() => this.apply()));
    byId("stop-search").addEventListener("click", () => this.stop());
    this.body = el("tbody");
    this.more = el("button", { type: "button", id: "more", click: () => this.grow() });
    byId("list").append(
      el("table", { class: index.lists.kinds.some((kind) => kind !== "") ? "list" : "list kindless" }, el("caption", { class: "visually-hidden" }, "Trajectories"), el("thead", null, el("tr", null, ["Task", "Kind", "When", "Score", "Advantage", "Turns", "Stop reason"].map((cell, n) => el("th", { scope: "col", class: `c${n}` }, cell)))), this.body),
      this.more,
    );
    this.most = arrays.quantile(index.columns.advantage, 0.98, (value) => Math.abs(value ?? 0)) ?? 0; // not the largest, which may be extreme
    this.apply();
  }

  fields() {
    const { index } = this;
    const { columns, lists } = index;
    const any = [["", "any"]];
    const texts = (list) => list.map((text, n) => [n, visible(text) || "(none)"]);
    const iterations = arrays.extent(columns.iteration);
    const phases = [...new Set(columns.phase)].sort();
    const tasks = el("datalist", { id: "tasks" }, lists.tasks.slice(0, TASKS_OFFERED).map((task) => el("option", { value: visible(task) })));
    const number = (name, value) => el("input", { type: "number", name, min: iterations[0] ?? 0, max: iterations[1] ?? 0, placeholder: value ?? "", inputmode: "numeric" });
    return [
      index.runs.length > 1 ? labeled("Run", select([...any, ...index.runs.map((run, n) => [n, visible(run.name)])], { name: "run" })) : null,
      labeled("Phase", select([...any, ...phases.map((phase) => [phase, PHASES[phase]])], { name: "phase" })),
      labeled("Iteration from", number("from", iterations[0])),
      labeled("Iteration to", number("to", iterations[1])),
      lists.kinds.some((kind) => kind !== "") ? labeled("Kind", select([...any, ...texts(lists.kinds)], { name: "kind" })) : null,
      labeled("Task", el("input", { name: "task", list: "tasks", placeholder: "part of its name", spellcheck: "false" })),
      labeled("Score", select([...any, ["solved", "solved (1 or more)"], ["partly", "partly solved (between 0 and 1)"], ["failed", "not solved (0 or less)"], ["none", "no score"]], { name: "reward" })),
      labeled("Stop reason", select([...any, ...texts(lists.stops)], { name: "stop" })),
      lists.statuses.length > 1 ? labeled("Status", select([...any, ...texts(lists.statuses)], { name: "status" })) : null,
      labeled("Order", select(Object.entries(ORDERS).map(([key, [label]]) => [key, label]), { name: "order" })),
      el("label", { class: "field text-field" }, el("span", null, "Text in prompts, thoughts, actions and observations"), el("input", { type: "search", name: "text", spellcheck: "false" })),
      el("button", { type: "reset", class: "quiet" }, "Reset"),
      tasks,
    ].filter((field) => field !== null);
  }

  values() {
    return Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, String(value)]));
  }

  stop() {
    this.search++;
    byId("progress").hidden = true;
    this.showCount(this.matches.length, " found before the search was stopped");
  }

  showCount(matched, end) {
    byId("count").textContent = `${count(matched)} of ${plural(this.index.rows, "trajectory", "trajectories")}${end ?? ""}`;
  }

  async apply() {
    const mine = ++this.search; // the latest query wins
    const values = this.values();
    const matches = this.filtered(values);
    byId("progress").hidden = true;
    if (!values.text) return this.show(matches);
    this.show([]);
    await this.runSearch(mine, matches, values.text.toLowerCase());
  }

  filtered(values) {
    const { columns, lists } = this.index;
    const tests = [];
    for (const name of ["run", "phase", "kind", "stop", "status"]) {
      if (values[name] === undefined || values[name] === "") continue;
      const number = Number(values[name]);
      tests.push((i) => columns[name][i] === number);
    }
    if (values.from) tests.push((i) => columns.iteration[i] >= Number(values.from));
    if (values.to) tests.push((i) => columns.iteration[i] <= Number(values.to));
    if (values.reward) tests.push((i) => scoreClass(columns.score[i]) === values.reward);
    if (values.task) {
      const part = values.task.toLowerCase();
      const tasks = lists.tasks.map((task) => visible(task).toLowerCase().includes(part));
      tests.push((i) => tasks[columns.task[i]]);
    }
    const matches = [];
    for (let i = 0; i < this.index.rows; i++) if (tests.every((test) => test(i))) matches.push(i);
    const key = ORDERS[values.order ?? "sampled"][1];
    return arrays.sort(matches, key(columns));
  }

  // Searches the texts chunk by chunk and shows matches as they are found.
  async runSearch(mine, candidates, text) {
    const chunks = arrays.group(candidates, (i) => this.index.columns.chunk[i]);
    const hits = new Set();
    let done = 0;
    byId("progress").hidden = false;
    byId("progress-bar").value = 0;
    this.showCount(0, ", searching \u2026");
    const order = [...chunks.keys()];
    for (const [chunk, rows] of chunks) {
      const bodies = await this.index.chunk(chunk);
      if (done + 1 < order.length) this.index.chunk(order[done + 1]).catch(() => null); // decoded in the meantime
      if (mine !== this.search) return;
      for (const i of rows) if (containsText(bodies[this.index.columns.offset[i]], text)) hits.add(i);
      done++;
      byId("progress-bar").value = done / chunks.size;
      if (done === chunks.size || hits.size > this.matches.length) this.show(candidates.filter((i) => hits.has(i)), done < chunks.size ? ", searching \u2026" : "", true);
      await new Promise((resolve) => setTimeout(resolve)); // keeps the page responsive
      if (mine !== this.search) return;
    }
    byId("progress").hidden = true;
    this.show(candidates.filter((i) => hits.has(i)));
  }

  show(matches, end, keep = false) {
    this.matches = matches;
    this.places = null;
    this.showCount(matches.length, end);
    const rows = keep ? Math.max(PAGE, this.renderedRows) : PAGE;
    this.renderedRows = 0;
    this.body.replaceChildren();
    this.grow(rows);
    if (matches.length === 0 && end === undefined) this.body.append(el("tr", null, el("td", { colspan: 7, class: "hint" }, this.index.rows ? "No trajectory matches these filters." : "This report contains no trajectories.")));
  }

  grow(by = PAGE) {
    const next = this.matches.slice(this.renderedRows, this.renderedRows + by);
    this.body.append(...next.map((i) => this.line(this.index.row(i))));
    this.renderedRows += next.length;
    const left = this.matches.length - this.renderedRows;
    this.more.hidden = left === 0;
    this.more.textContent = `${count(Math.min(PAGE, left))} more (${count(left)} left)`;
  }

  line(row) {
    const when = row.phase === TRAINING ? `iteration ${row.iteration}` : PHASES[row.phase];
    const cells = [
      el("a", { href: linkTo(row, null), "data-row": row.i }, visible(row.task)),
      visible(row.kind),
      this.index.runs.length > 1 ? [swatch(row.run), el("span", { class: "visually-hidden" }, visible(row.runName)), ` ${when}`] : when,
      scoreChip(row),
      row.advantage === null ? el("span", { class: "without" }, NONE) : [bar(row.advantage, this.most), " ", el("span", { class: "amount" }, signed(row.advantage))],
      [row.turns, el("span", { class: "unit" }, row.turns === 1 ? " turn" : " turns")],
      visible(row.stop),
    ];
    return el("tr", { click: (event) => event.target.closest("a") ?? (location.hash = linkTo(row, null)) }, cells.map((cell, n) => el("td", { class: `c${n}` }, cell)));
  }

  position(i) {
    this.places ??= new Map(this.matches.map((row, n) => [row, n]));
    return this.places.get(i) ?? null;
  }

  neighbor(i, by) {
    const at = this.position(i);
    if (at === null) return i + by >= 0 && i + by < this.index.rows ? i + by : null;
    return this.matches[at + by] ?? null;
  }

  linkOf(i) {
    const at = this.position(i);
    while (at !== null && at >= this.renderedRows) this.grow();
    return this.body.querySelector(`a[data-row="${i}"]`);
  }

  mark(i) {
    for (const marked of this.body.querySelectorAll("tr.open")) marked.classList.remove("open");
    this.body.querySelector(`a[data-row="${i}"]`)?.closest("tr").classList.add("open");
  }

  // Moves the focus to another row of the list.
  step(by) {
    const focused = document.activeElement?.closest?.("a[data-row]");
    const at = focused ? this.position(Number(focused.dataset.row)) + by : 0;
    if (at < 0 || at >= this.matches.length) return;
    this.linkOf(this.matches[at])?.focus();
  }
}

function containsText(body, text) {
  if (`${body.opening}\n${body.failure ?? ""}`.toLowerCase().includes(text)) return true;
  return body.turns.some((turn) => textOf(turn).toLowerCase().includes(text) || turn.observation.toLowerCase().includes(text));
}
