// The viewer: one trajectory turn by turn, or its group side by side.

const LONG_TEXT = 1200; // characters; longer texts begin folded

class Viewer {
  constructor(index, list) {
    this.index = index;
    this.list = list;
    this.dialog = byId("viewer");
    this.wanted = 0;
    this.side = false;
    // The browser tells of a closing later, when the next trajectory may already be on its way: so we close ourselves.
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.close();
    });
    this.dialog.addEventListener("close", () => this.dialog.open || this.tidy());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.close());
  }

  async open(i, turn = null, side = false) {
    const wanted = ++this.wanted; // a later call wins
    const row = this.index.row(i);
    const rows = this.index.group(i);
    const bodies = await Promise.all((side ? rows : [i]).map((each) => this.index.body(each)));
    if (wanted !== this.wanted) return;
    const moved = this.shownRow !== i || this.side !== side;
    Object.assign(this, { shownRow: i, side });
    if (moved || !this.dialog.open) {
      const content = side ? sideBySide(this.index, rows, bodies, i) : oneTrajectory(row, bodies[0], rows.indexOf(i));
      const inside = el("div", { class: "viewer-inside", id: "viewer-inside", tabindex: "0", role: "region", "aria-label": side ? "Group side by side" : "One attempt" }, content);
      this.dialog.replaceChildren(this.head(row, rows, side), inside);
    }
    if (!this.dialog.open) {
      this.before = document.activeElement;
      this.dialog.showModal();
      this.viewing = true;
      document.documentElement.classList.add("viewing");
    }
    this.list.mark(i);
    const target = turn === null ? null : byId(`turn-${turn}`);
    for (const marked of this.dialog.querySelectorAll(".linked")) marked.classList.remove("linked");
    if (moved) byId("viewer-inside").focus({ preventScroll: true });
    if (target) {
      target.classList.add("linked");
      target.scrollIntoView({ block: "start" });
    } else if (moved) {
      this.dialog.querySelector(".side-head.own")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  head(row, rows, side) {
    const at = this.list.position(row.i);
    const step = (by, label, key) => {
      const to = this.list.neighbour(row.i, by);
      return el("button", { type: "button", class: "quiet", disabled: to === null, title: `${label} (${key})`, click: () => this.move(by) }, label);
    };
    const toggle = el("button", { type: "button", class: "quiet", id: "viewer-side", "aria-pressed": String(side), title: "g", click: () => this.turnSide() }, `Group side by side (${rows.length})`);
    return el(
      "header",
      { class: "viewer-head" },
      el(
        "div",
        { class: "viewer-line" },
        el("h2", { id: "viewer-title" }, shown(row.task)),
        el("button", { type: "button", class: "quiet close", "aria-label": "Close", title: "Close (Esc)", click: () => this.close() }, "\u2715"),
      ),
      el(
        "p",
        { class: "viewer-facts" },
        rewardChip(row.reward),
        fact("advantage", row.advantage === null ? null : signed(row.advantage)),
        fact("kind", row.kind),
        fact("", row.phase === TRAINING ? `iteration ${row.iteration}` : PHASES[row.phase]),
        fact("", plural(row.turns, "turn")),
        fact("ended by", row.stop),
        row.status && row.status !== "ok" ? fact("status", row.status) : null,
        this.index.runs.length > 1 ? fact("run", row.runName) : null,
        fact("id", row.id),
      ),
      el(
        "div",
        { class: "viewer-buttons" },
        step(-1, "\u2190 Previous", "k"),
        step(1, "Next \u2192", "j"),
        at === null ? null : el("span", { class: "at" }, `${count(at + 1)} of ${count(this.list.matches.length)}`),
        el("span", { class: "space" }),
        toggle,
        el("button", { type: "button", class: "quiet", id: "copy-link", click: () => copyLink(row, null) }, "Copy link"),
      ),
    );
  }

  move(by) {
    const to = this.list.neighbour(this.shownRow, by);
    if (to === null) return say(by > 0 ? "This is the last one" : "This is the first one");
    replaceLink(this.index.row(to), null);
    this.open(to, null, this.side);
  }

  turnSide() {
    this.open(this.shownRow, null, !this.side).then(() => byId("viewer-side").focus());
  }

  close() {
    this.wanted++;
    this.dialog.close();
    this.tidy();
  }

  tidy() {
    if (!this.viewing) return;
    this.viewing = false;
    document.documentElement.classList.remove("viewing");
    if (location.hash.includes("run=")) history.replaceState(null, "", "#trajectories");
    const link = this.list.linkOf(this.shownRow);
    (link ?? this.before)?.focus?.({ preventScroll: link === null });
  }
}

function fact(label, value) {
  if (value === null || value === undefined || value === "") return null;
  return el("span", { class: "viewer-fact" }, label ? el("span", { class: "label" }, `${label} `) : null, shown(value));
}

function oneTrajectory(row, body, place) {
  const changes = body.turns.flatMap((turn) => turn.spans.map((span) => span[1])).filter((change) => change !== null);
  const reach = d3.max(changes, Math.abs) ?? 0;
  return [
    story(row, body, place),
    el(
      "section",
      { "aria-labelledby": "turn-by-turn" },
      el("h3", { id: "turn-by-turn" }, "Turn by turn"),
      changes.length ? tokenLegend(reach) : el("p", { class: "hint" }, "How the probability of single tokens changed is not known here."),
      body.opening ? folded("Opening", body.opening, "opening") : null,
      body.turns.length ? body.turns.map((turn, n) => oneTurn(row, turn, n + 1, reach)) : el("p", { class: "note" }, "This attempt ended before its first turn."),
    ),
  ];
}

function folded(label, text, kind) {
  const long = text.length > LONG_TEXT;
  const box = el("div", { class: `text ${kind}`, dir: "auto" }, shown(text));
  if (!long) return el("div", { class: "piece" }, el("h5", { class: "piece-label" }, label), box);
  return el("details", { class: "piece" }, el("summary", { class: "piece-label" }, `${label}, ${count(text.length)} characters`), box);
}

function tokenLegend(reach) {
  const steps = [-1, -0.25, 0, 0.25, 1].map((share) => {
    const cell = el("span", { class: "tone" }, share === 0 ? "0" : signed(share * reach, 2));
    tint(cell, share);
    return cell;
  });
  return el("p", { class: "token-legend" }, el("span", null, "Tokens: log-probability after the update of their turn, minus when they were sampled. Less likely "), el("span", { class: "tones" }, steps), el("span", null, " more likely"));
}

// `share` of the largest change. The root lets small changes be seen beside one that is large.
function tint(element, share) {
  if (share === 0) return;
  element.classList.add(share > 0 ? "up" : "down");
  element.style.setProperty("--tone", `${Math.round(100 * Math.sqrt(Math.min(1, Math.abs(share))))}%`);
}

function tokens(spans, reach) {
  return spans.map(([text, change]) => {
    if (change === null) return el("span", { class: "token" }, shown(text));
    const token = el("span", { class: "token", title: `log-prob ${signed(change)}` }, shown(text));
    if (reach > 0) tint(token, change / reach);
    return token;
  });
}

function tokenTable(turn) {
  const details = el("details", { class: "numbers" }, el("summary", null, "Tokens as a table"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const rows = turn.spans.map(([text, change], n) => [n + 1, el("code", null, shown(JSON.stringify(text))), change === null ? NONE : signed(change)]);
    details.append(el("div", { class: "scroll low", role: "region", tabindex: "0", "aria-label": "Tokens of this turn" }, table(["", "Token", "Change of log-prob"], rows, { class: "plain" })));
  });
  return details;
}

function turnCredit(credit) {
  if (credit === null) return null;
  const parts = [`ratio ${ratioText(credit.ratio)}`];
  if (credit.position !== null) parts.unshift(`updated ${ordinal(credit.position)}`);
  if (credit.before === null && credit.weight !== undefined && credit.weight !== null) parts.push(`weight ${signed(credit.weight)}`);
  if (credit.before !== null) {
    const digits = digitsToTell(credit.before, credit.after);
    parts.push(`M ${signed(credit.before, digits)} \u2192 ${credit.after === null ? NONE : signed(credit.after, digits)}`);
  }
  return [fact("", parts.join(", ")), credit.clipped ? el("span", { class: "clip" }, "the clip binds") : null];
}

function oneTurn(row, turn, n, reach) {
  const logprobs = turn.logprob_before === null ? null : `${num(turn.logprob_before)}${turn.logprob_after === null ? "" : ` \u2192 ${num(turn.logprob_after)}`}`;
  const pieces = partsOf(turn).map((part) =>
    el(
      "div",
      { class: "piece" },
      el("h5", { class: "piece-label" }, part.thought ? "Thought" : "Action"),
      el("div", { class: part.thought ? "text thought" : "text action", dir: "auto" }, tokens(turn.spans.slice(part.from, part.to), reach)),
    ),
  );
  return el(
    "article",
    { class: "turn", id: `turn-${n}`, "aria-labelledby": `turn-title-${n}` },
    el(
      "div",
      { class: "turn-head" },
      el("h4", { id: `turn-title-${n}` }, `Turn ${n}`),
      el("div", { class: "viewer-facts" }, turnCredit(turn.credit), fact("", `${count(turn.prompt_tokens)} + ${plural(turn.action_tokens, "token")}`), fact("log-prob", logprobs)),
      el("button", { type: "button", class: "quiet", "aria-label": `Copy link to turn ${n}`, click: () => copyLink(row, n) }, "Copy link"),
    ),
    pieces.length ? pieces : el("p", { class: "hint" }, "Nothing was sampled in this turn."),
    turn.observation ? folded("Observation", turn.observation, "observation") : null,
    turn.spans.length ? tokenTable(turn) : null,
  );
}
