// Attempts at one task side by side: a group of training, or the same task before and after.

// How many characters the texts share at their beginning; never half of a character.
function sharedStart(texts) {
  if (texts.length < 2) return 0;
  let n = 0;
  while (n < texts[0].length && texts.every((text) => text[n] === texts[0][n])) n++;
  const code = n > 0 ? texts[0].charCodeAt(n - 1) : 0;
  return code >= 0xd800 && code < 0xdc00 ? n - 1 : n;
}

// `own`: the row that was open, if one was.
function sideBySide(index, rows, bodies, own = null) {
  const attempts = rows.map((i, n) => ({ row: index.row(i), body: bodies[n], actions: bodies[n].turns.map(actionOf), own: i === own }));
  for (const phase of d3.group(attempts, ({ row }) => row.phase).values()) phase.forEach((attempt, n) => (attempt.number = n + 1));
  const turns = d3.max(attempts, ({ actions }) => actions.length) ?? 0;
  const grid = el("div", { class: "side" });
  grid.style.setProperty("--attempts", attempts.length);
  grid.append(...attempts.map(attemptHead));
  for (let turn = 0; turn < turns; turn++) {
    const texts = attempts.map(({ actions }) => actions[turn]);
    const there = texts.filter((text) => text !== undefined);
    const start = sharedStart(there);
    const same = there.length > 1 && there.every((text) => text === there[0]);
    grid.append(
      el("h4", { class: "side-turn" }, `Turn ${turn + 1}`, el("span", { class: "hint" }, there.length < 2 ? " only one attempt came this far" : same ? there.length < attempts.length ? " the same in all that came this far" : " the same in all" : start ? ` the first ${plural(start, "character")} are shared` : " different from the first character")),
      ...attempts.map((attempt, n) => attemptTurn(attempt, turn, texts, n, same ? there[0].length : start)),
    );
  }
  const first = bodies.find((body) => body.opening)?.opening;
  return [
    first ? folded("Opening", first, "opening") : null,
    el("p", { class: "hint" }, "What the actions of all attempts share at the beginning of a turn is pale; \u25b8 marks where they part."),
    scrollBox("Attempts side by side", grid),
  ];
}

function attemptHead({ row, number, own }) {
  const when = row.phase === BEFORE ? "Before" : row.phase === AFTER ? "After" : "Attempt";
  return el(
    "div",
    { class: `side-head phase-${row.phase}${own ? " own" : ""}` },
    el("h4", null, el("a", { href: linkTo(row, null) }, `${when} ${number}`)),
    el("p", { class: "viewer-facts" }, rewardChip(row.reward), fact("A", row.advantage === null ? null : signed(row.advantage)), fact("", plural(row.turns, "turn")), fact("ended by", row.stop)),
  );
}

function attemptTurn({ row, body, own }, turn, texts, n, start) {
  const text = texts[n];
  if (text === undefined) return el("div", { class: "side-cell gone" }, el("p", { class: "hint" }, "had ended"));
  const alike = texts.findIndex((other) => other === text);
  const { observation, credit } = body.turns[turn];
  const thought = wordsOf(body.turns[turn], true);
  return el(
    "div",
    { class: `side-cell phase-${row.phase}${own ? " own" : ""}` },
    thought ? el("details", null, el("summary", null, "Thought"), el("div", { class: "text thought", dir: "auto" }, shown(thought))) : null,
    el(
      "div",
      { class: "text action", dir: "auto" },
      start ? el("span", { class: "shared" }, shown(text.slice(0, start))) : null,
      start < text.length ? [el("span", { class: "parts-here", title: "Here the attempts part" }, "\u25b8"), el("span", null, shown(text.slice(start)))] : null,
      text === "" ? el("span", { class: "hint" }, "(empty)") : null,
    ),
    alike < n && start < text.length ? el("p", { class: "hint" }, `the same as in column ${alike + 1}`) : null,
    credit ? el("p", { class: "hint" }, `ratio ${ratioText(credit.ratio)}${credit.ratio > 1 ? " \u2191" : credit.ratio < 1 ? " \u2193" : ""}${credit.clipped ? ", the clip binds" : ""}`) : null,
    observation ? el("div", { class: "text observation short", dir: "auto" }, shown(observation.length > 400 ? `${observation.slice(0, 400)}\u2026` : observation)) : null,
  );
}

// Tasks with attempts in both phases, the one that changed most first: [{run, task, before: [rows], after: [rows], change}]
function comparable(index) {
  const tasks = new Map();
  const { columns } = index;
  for (let i = 0; i < index.rows; i++) {
    if (columns.phase[i] === TRAINING) continue;
    const key = `${columns.run[i]}/${columns.task[i]}`;
    if (!tasks.has(key)) tasks.set(key, { run: columns.run[i], task: index.lists.tasks[columns.task[i]], before: [], after: [] });
    tasks.get(key)[columns.phase[i] === BEFORE ? "before" : "after"].push(i);
  }
  const mean = (rows) => d3.mean(rows.map((i) => columns.reward[i]).filter((reward) => reward !== null));
  const both = [...tasks.values()].filter(({ before, after }) => before.length && after.length);
  for (const entry of both) Object.assign(entry, { was: mean(entry.before), is: mean(entry.after) });
  for (const entry of both) entry.change = (entry.is ?? 0) - (entry.was ?? 0);
  return both.sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || b.change - a.change);
}

function showComparison(index) {
  const place = byId("compare-content");
  const all = comparable(index);
  if (all.length === 0) {
    place.append(el("p", { class: "note" }, "No held-out task was kept both before and after training, so there is nothing to compare."));
    return;
  }
  const runs = [...new Set(all.map((entry) => entry.run))].sort((a, b) => a - b);
  const content = el("div", { class: "compared" });
  let wanted = 0;
  const show = async (entry) => {
    const mine = ++wanted;
    const rows = d3.range(Math.max(entry.before.length, entry.after.length)).flatMap((n) => [entry.before[n], entry.after[n]]).filter((i) => i !== undefined);
    const bodies = await Promise.all(rows.map((i) => index.body(i)));
    if (mine !== wanted) return;
    const better = entry.change > 0 ? "better" : entry.change < 0 ? "worse" : "the same";
    content.replaceChildren(
      el("p", { class: "lead" }, `Mean reward of this task: ${num(entry.was ?? null)} before (${plural(entry.before.length, "attempt")}), ${num(entry.is ?? null)} after (${plural(entry.after.length, "attempt")}): ${better}.`),
      ...sideBySide(index, rows, bodies).filter((part) => part !== null),
    );
  };
  const tasks = el("select", { id: "compare-task" });
  let shownEntries = [];
  const fill = (run) => {
    shownEntries = all.filter((entry) => entry.run === run);
    tasks.replaceChildren(...shownEntries.map((entry, n) => el("option", { value: n }, shown(`${entry.task}: ${num(entry.was ?? null)} \u2192 ${num(entry.is ?? null)}`))));
    show(shownEntries[0]);
  };
  tasks.addEventListener("change", () => show(shownEntries[Number(tasks.value)]));
  const run = select(runs.map((n) => [n, shown(index.runs[n].name)]), { id: "compare-run", change: (event) => fill(Number(event.target.value)) });
  place.append(
    el("p", { class: "lead" }, "Attempts at the same held-out task before and after training. Tasks that changed most come first."),
    el("div", { class: "filters" }, runs.length > 1 ? labelled("Run", run) : null, labelled("Task", tasks)),
    content,
  );
  // Nothing is decoded before someone looks.
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    fill(runs[0]);
  }, { rootMargin: "400px" });
  watch.observe(place);
}
