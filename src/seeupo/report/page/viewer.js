// The viewer: one trajectory turn by turn, or its group side by side.

const LONG_TEXT = 1200; // characters; longer texts are collapsed

class Viewer {
  constructor(index, list) {
    this.index = index;
    this.list = list;
    this.dialog = byId("viewer");
    this.wanted = 0;
    this.side = false;
    // The browser's close event comes late, when the next trajectory may already be loading; so close explicitly.
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.close();
    });
    this.dialog.addEventListener("close", () => this.dialog.open || this.tidy());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.close());
  }

  async open(i, turn = null, side = false) {
    const wanted = ++this.wanted; // the latest call wins
    const row = this.index.row(i);
    const rows = this.index.group(i);
    const bodies = await Promise.all((side ? rows : [i]).map((number) => this.index.body(number)));
    if (wanted !== this.wanted) return;
    const moved = this.openRow !== i || this.side !== side;
    Object.assign(this, { openRow: i, side });
    if (moved || !this.dialog.open) {
      const content = side ? sideBySide(this.index, rows, bodies, i) : trajectoryView(row, bodies[0], rows.indexOf(i));
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
      const to = this.list.neighbor(row.i, by);
      return el("button", { type: "button", class: "quiet", disabled: to === null, title: `${label} (${key})`, click: () => this.move(by) }, label);
    };
    const toggle = el("button", { type: "button", class: "quiet", id: "viewer-side", "aria-pressed": String(side), title: "g", click: () => this.toggleGroup() }, `Group side by side (${rows.length})`);
    return el(
      "header",
      { class: "viewer-head" },
      el(
        "div",
        { class: "viewer-line" },
        el("h2", { id: "viewer-title" }, visible(row.task)),
        el("button", { type: "button", class: "quiet close", "aria-label": "Close", title: "Close (Esc)", click: () => this.close() }, "\u2715"),
      ),
      el(
        "p",
        { class: "viewer-details" },
        scoreChip(row),
        detail("advantage", row.advantage === null ? null : signed(row.advantage)),
        detail("kind", row.kind),
        detail("", row.phase === TRAINING ? `iteration ${row.iteration}` : PHASES[row.phase]),
        detail("", plural(row.turns, "turn")),
        detail("stop reason", row.stop),
        row.status && row.status !== "ok" ? detail("status", row.status) : null,
        this.index.runs.length > 1 ? detail("run", row.runName) : null,
        detail("id", row.id),
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
    const to = this.list.neighbor(this.openRow, by);
    if (to === null) return announce(by > 0 ? "This is the last trajectory" : "This is the first trajectory");
    replaceLink(this.index.row(to), null);
    this.open(to, null, this.side);
  }

  toggleGroup() {
    this.open(this.openRow, null, !this.side).then(() => byId("viewer-side").focus());
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
    const link = this.list.linkOf(this.openRow);
    (link ?? this.before)?.focus?.({ preventScroll: link === null });
  }
}

function detail(label, value) {
  if (value === null || value === undefined || value === "") return null;
  return el("span", { class: "viewer-detail" }, label ? el("span", { class: "label" }, `${label} `) : null, visible(value));
}

function trajectoryView(row, body, position) {
  const changes = body.turns.flatMap((turn) => turn.tokens.map((token) => token[1])).filter((change) => change !== null);
  const reach = arrays.max(changes, Math.abs) ?? 0;
  return [
    creditTrace(row, body, position),
    el(
      "section",
      { "aria-labelledby": "turn-by-turn" },
      el("h3", { id: "turn-by-turn" }, "Turn by turn"),
      changes.length ? tokenLegend(reach) : el("p", { class: "hint" }, "The log-prob changes of single tokens are not known."),
      body.opening ? collapsible("Initial observation", body.opening, "opening") : null,
      body.turns.length ? body.turns.map((turn, n) => turnView(row, turn, n + 1, reach)) : el("p", { class: "note" }, "This attempt ended before its first turn."),
      body.failure === null ? null : el("p", { class: "note bad" }, visible(`Infrastructure failure: ${body.failure}`)),
    ),
  ];
}

function collapsible(label, text, kind) {
  const long = text.length > LONG_TEXT;
  const box = el("div", { class: `text ${kind}`, dir: "auto" }, visible(text));
  if (!long) return el("div", { class: "piece" }, el("h5", { class: "piece-label" }, label), box);
  return el("details", { class: "piece" }, el("summary", { class: "piece-label" }, `${label}, ${count(text.length)} characters`), box);
}

function tokenLegend(reach) {
  const steps = [-1, -0.25, 0, 0.25, 1].map((share) => {
    const cell = el("span", { class: "tone" }, share === 0 ? "0" : signed(share * reach, 2));
    tint(cell, share);
    return cell;
  });
  return el("p", { class: "token-legend" }, el("span", null, "Color: log-prob of a token after its turn's update minus its log-prob at sampling. Less likely "), el("span", { class: "tones" }, steps), el("span", null, " more likely"));
}

// `share` of the largest change. The square root keeps small changes visible beside a large one.
function tint(element, share) {
  if (share === 0) return;
  element.classList.add(share > 0 ? "up" : "down");
  element.style.setProperty("--tone", `${Math.round(100 * Math.sqrt(Math.min(1, Math.abs(share))))}%`);
}

function coloredTokens(tokens, reach) {
  return tokens.map(([text, change]) => {
    if (change === null) return el("span", { class: "token" }, visible(text));
    const token = el("span", { class: "token", title: `log-prob ${signed(change)}` }, visible(text));
    if (reach > 0) tint(token, change / reach);
    return token;
  });
}

function tokenTable(turn) {
  const details = el("details", { class: "numbers" }, el("summary", null, "Tokens as a table"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const rows = turn.tokens.map(([text, change], n) => [n + 1, el("code", null, visible(JSON.stringify(text))), change === null ? NONE : signed(change)]);
    details.append(el("div", { class: "scroll low", role: "region", tabindex: "0", "aria-label": "Tokens of this turn" }, table(["", "Token", "Log-prob change"], rows, { class: "plain" })));
  });
  return details;
}

function turnCredit(credit) {
  if (credit === null) return null;
  const parts = [`ratio ${ratioText(credit.ratio)}`];
  if (credit.position !== null) parts.unshift(`updated ${ordinal(credit.position)}`);
  if (credit.before === null && credit.weight !== undefined && credit.weight !== null) parts.push(`weight ${signed(credit.weight)}`);
  if (credit.before !== null) {
    const digits = distinctDigits(credit.before, credit.after);
    parts.push(`M ${signed(credit.before, digits)} \u2192 ${credit.after === null ? NONE : signed(credit.after, digits)}`);
  }
  return [detail("", parts.join(", ")), credit.clipped ? el("span", { class: "clip" }, "clip active") : null];
}

function turnView(row, turn, n, reach) {
  const logprobs = turn.logprob_before === null ? null : `${num(turn.logprob_before)}${turn.logprob_after === null ? "" : ` \u2192 ${num(turn.logprob_after)}`}`;
  const pieces = partsOf(turn).map((part) =>
    el(
      "div",
      { class: "piece" },
      el("h5", { class: "piece-label" }, part.thought ? "Thought" : "Action"),
      el("div", { class: part.thought ? "text thought" : "text action", dir: "auto" }, coloredTokens(turn.tokens.slice(part.from, part.to), reach)),
    ),
  );
  return el(
    "article",
    { class: "turn", id: `turn-${n}`, "aria-labelledby": `turn-title-${n}` },
    el(
      "div",
      { class: "turn-head" },
      el("h4", { id: `turn-title-${n}` }, `Turn ${n}`),
      el("div", { class: "viewer-details" }, turnCredit(turn.credit), turn.reward ? detail("step reward", signed(turn.reward)) : null, detail("", `${count(turn.prompt_tokens)} prompt + ${plural(turn.action_tokens, "action token")}`), detail("log-prob", logprobs)),
      el("button", { type: "button", class: "quiet", "aria-label": `Copy link to turn ${n}`, click: () => copyLink(row, n) }, "Copy link"),
    ),
    pieces.length ? pieces : el("p", { class: "hint" }, "No token was sampled in this turn."),
    turn.observation ? collapsible("Observation", turn.observation, "observation") : null,
    turn.tokens.length ? tokenTable(turn) : null,
  );
}
