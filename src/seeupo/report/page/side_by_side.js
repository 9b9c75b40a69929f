// Attempts at one task side by side: a training group, or the same held-out task before and after training.

// Length of the common prefix of the texts, never ending inside a character.
function commonPrefix(texts) {
  if (texts.length < 2) return 0;
  let n = 0;
  while (n < texts[0].length && texts.every((text) => text[n] === texts[0][n])) n++;
  const code = n > 0 ? texts[0].charCodeAt(n - 1) : 0;
  return code >= 0xd800 && code < 0xdc00 ? n - 1 : n;
}

// `own` is the row that was open, if any.
function sideBySide(index, rows, bodies, own = null) {
  const attempts = rows.map((i, n) => ({ row: index.row(i), body: bodies[n], actions: bodies[n].turns.map(actionOf), own: i === own }));
  for (const phase of arrays.group(attempts, ({ row }) => row.phase).values()) phase.forEach((attempt, n) => (attempt.number = n + 1));
  const turns = arrays.max(attempts, ({ actions }) => actions.length) ?? 0;
  const grid = el("div", { class: "side" });
  grid.style.setProperty("--attempts", attempts.length);
  grid.append(...attempts.map(attemptHead));
  for (let turn = 0; turn < turns; turn++) {
    const texts = attempts.map(({ actions }) => actions[turn]);
    const there = texts.filter((text) => text !== undefined);
    const start = commonPrefix(there);
    const same = there.length > 1 && there.every((text) => text === there[0]);
    grid.append(
      el("h4", { class: "side-turn" }, `Turn ${turn + 1}`, el("span", { class: "hint" }, there.length < 2 ? " only one attempt reached this turn" : same ? there.length < attempts.length ? " identical in all attempts that reached it" : " identical in all attempts" : start ? ` common prefix of ${plural(start, "character")}` : " different from the first character on")),
      ...attempts.map((attempt, n) => attemptTurn(attempt, turn, texts, n, same ? there[0].length : start)),
    );
  }
  const first = bodies.find((body) => body.opening)?.opening;
  return [
    first ? collapsible("Initial observation", first, "opening") : null,
    el("p", { class: "hint" }, "The common prefix of all actions in a turn is pale; \u25b8 marks where an action differs."),
    scrollBox("Attempts side by side", grid),
  ];
}

function attemptHead({ row, number, own }) {
  const when = row.phase === BEFORE ? "Before" : row.phase === AFTER ? "After" : "Attempt";
  return el(
    "div",
    { class: `side-head phase-${row.phase}${own ? " own" : ""}` },
    el("h4", null, el("a", { href: linkTo(row, null) }, `${when} ${number}`)),
    el("p", { class: "viewer-details" }, scoreChip(row), detail("A", row.advantage === null ? null : signed(row.advantage)), detail("", plural(row.turns, "turn")), detail("stop reason", row.stop)),
  );
}

function attemptTurn({ row, body, own }, turn, texts, n, start) {
  const text = texts[n];
  if (text === undefined) return el("div", { class: "side-cell gone" }, el("p", { class: "hint" }, "already ended"));
  const alike = texts.findIndex((other) => other === text);
  const { observation, credit, reward } = body.turns[turn];
  const thought = partText(body.turns[turn], true);
  return el(
    "div",
    { class: `side-cell phase-${row.phase}${own ? " own" : ""}` },
    thought ? el("details", null, el("summary", null, "Thought"), el("div", { class: "text thought", dir: "auto" }, visible(thought))) : null,
    el(
      "div",
      { class: "text action", dir: "auto" },
      start ? el("span", { class: "shared" }, visible(text.slice(0, start))) : null,
      start < text.length ? [el("span", { class: "parts-here", title: "The attempts differ from here on" }, "\u25b8"), el("span", null, visible(text.slice(start)))] : null,
      text === "" ? el("span", { class: "hint" }, "(empty)") : null,
    ),
    alike < n && start < text.length ? el("p", { class: "hint" }, `identical to column ${alike + 1}`) : null,
    credit ? el("p", { class: "hint" }, `ratio ${ratioText(credit.ratio)}${credit.ratio > 1 ? " \u2191" : credit.ratio < 1 ? " \u2193" : ""}${credit.clipped ? ", clip active" : ""}`) : null,
    reward ? el("p", { class: "hint" }, `step reward ${signed(reward)}`) : null,
    observation ? el("div", { class: "text observation short", dir: "auto" }, visible(observation.length > 400 ? `${observation.slice(0, 400)}\u2026` : observation)) : null,
  );
}

// Tasks with attempts in both phases, largest change first: [{run, task, before: [rows], after: [rows], change}]
function comparable(index) {
  const tasks = new Map();
  const { columns } = index;
  for (let i = 0; i < index.rows; i++) {
    if (columns.phase[i] === TRAINING) continue;
    const key = `${columns.run[i]}/${columns.task[i]}`;
    if (!tasks.has(key)) tasks.set(key, { run: columns.run[i], task: index.lists.tasks[columns.task[i]], before: [], after: [] });
    tasks.get(key)[columns.phase[i] === BEFORE ? "before" : "after"].push(i);
  }
  const mean = (rows) => arrays.mean(rows.map((i) => columns.reward[i]).filter((reward) => reward !== null));
  const both = [...tasks.values()].filter(({ before, after }) => before.length && after.length);
  for (const entry of both) Object.assign(entry, { was: mean(entry.before), is: mean(entry.after) });
  for (const entry of both) entry.change = (entry.is ?? 0) - (entry.was ?? 0);
  return both.sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || b.change - a.change);
}

function showComparison(index) {
  const section = byId("compare-content");
  const all = comparable(index);
  if (all.length === 0) {
    section.append(el("p", { class: "note" }, "This report has no held-out task with attempts both before and after training, so there is nothing to compare."));
    return;
  }
  const runs = [...new Set(all.map((entry) => entry.run))].sort((a, b) => a - b);
  const content = el("div", { class: "compared" });
  let wanted = 0;
  const show = async (entry) => {
    const mine = ++wanted;
    const rows = arrays.range(0, Math.max(entry.before.length, entry.after.length)).flatMap((n) => [entry.before[n], entry.after[n]]).filter((i) => i !== undefined);
    const bodies = await Promise.all(rows.map((i) => index.body(i)));
    if (mine !== wanted) return;
    const better = entry.change > 0 ? "improved" : entry.change < 0 ? "regressed" : "no change";
    content.replaceChildren(
      el("p", { class: "lead" }, `Mean reward: ${num(entry.was ?? null)} before (${plural(entry.before.length, "attempt")}), ${num(entry.is ?? null)} after (${plural(entry.after.length, "attempt")}), ${better}.`),
      ...sideBySide(index, rows, bodies).filter((part) => part !== null),
    );
  };
  const tasks = el("select", { id: "compare-task" });
  let choices = [];
  const fill = (run) => {
    choices = all.filter((entry) => entry.run === run);
    tasks.replaceChildren(...choices.map((entry, n) => el("option", { value: n }, visible(`${entry.task}: ${num(entry.was ?? null)} \u2192 ${num(entry.is ?? null)}`))));
    show(choices[0]);
  };
  tasks.addEventListener("change", () => show(choices[Number(tasks.value)]));
  const run = select(runs.map((n) => [n, visible(index.runs[n].name)]), { id: "compare-run", change: (event) => fill(Number(event.target.value)) });
  section.append(
    el("p", { class: "lead" }, "Attempts at the same held-out task before and after training. Tasks with the largest change come first."),
    el("div", { class: "filters" }, runs.length > 1 ? labeled("Run", run) : null, labeled("Task", tasks)),
    content,
  );
  // Trajectories are decoded when the section comes near the viewport.
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    fill(runs[0]);
  }, { rootMargin: "400px" });
  watch.observe(section);
}
