// The credit of one trajectory, told as a story: reward, group, advantage, then turn by turn in update order.

// A bar from a middle line: to the right and blue is up, to the left and orange is down.
function bar(value, most) {
  const share = most > 0 ? Math.min(1, Math.abs(value) / most) : 0;
  const fill = el("span", { class: value < 0 ? "fill down" : "fill up" });
  fill.style.width = `${50 * share}%`;
  return el("span", { class: "push-bar", "aria-hidden": "true" }, fill);
}

function rewardChip(reward) {
  const kind = rewardClass(reward);
  return el("span", { class: `reward ${kind}` }, reward === null ? "no score" : `${num(reward)} ${REWARD_WORDS[kind]}`);
}

function story(row, body, place) {
  return el("section", { class: "story", "aria-labelledby": "story-title" }, el("h3", { id: "story-title" }, "Its credit"), ...storyParts(row, body, place));
}

function storyParts(row, body, place) {
  const steps = body.turns
    .map((turn, n) => ({ ...turn.credit, turn: n + 1, moved: turn.logprob_before === null || turn.logprob_after === null ? null : Math.exp(turn.logprob_after - turn.logprob_before), tokens: turn.action_tokens }))
    .filter((step) => step.position !== undefined)
    .sort((a, b) => a.position - b.position || a.turn - b.turn); // null counts as 0: together, from the first turn on
  const paragraphs = [el("p", null, opening(row, body))];
  if (body.group_rewards.length > 1) paragraphs.push(groupRewards(row, body, place));
  if (row.phase !== TRAINING) return [...paragraphs, el("p", null, "It was an attempt at a held-out task: nothing was learned from it, so no turn has credit.")];
  if (steps.length === 0) return [...paragraphs, el("p", null, withoutCredit(row))];
  const carried = steps.some((step) => step.before !== null);
  paragraphs.push(el("p", null, carried ? sweepWords(steps, row) : plainWords()));
  if (row.advantage === 0) paragraphs.push(el("p", null, "As A is 0, no turn was pushed; its ratios moved only because other attempts moved the weights."));
  paragraphs.push(creditTable(steps, row, carried));
  const end = ending(steps, row, carried);
  if (end) paragraphs.push(el("p", null, end));
  return paragraphs;
}

function opening(row, body) {
  if (row.reward === null) return "This attempt has no reward: the infrastructure failed it, and failed attempts are never scored.";
  const parts = ["This attempt got a reward of ", el("strong", null, num(row.reward)), "."];
  if (body.group_mean !== null && body.group_size > 1) {
    const gap = row.reward - body.group_mean;
    const than = Math.abs(gap) < 1e-9 ? "exactly the average" : `${num(Math.abs(gap))} ${gap > 0 ? "above" : "below"} the average`;
    parts.push(` The ${count(body.group_size)} attempts of its group, all at the same task, got ${num(body.group_mean)} on average: it was ${than}.`);
  }
  if (row.advantage !== null) {
    parts.push(row.algorithm === "ppo" ? " Its advantage, as the critic saw its tokens on average, is " : " Its advantage, that difference as the algorithm scales it, is ", el("strong", null, `A = ${signed(row.advantage)}`));
    parts.push(row.advantage > 0 ? ": what it did should become more likely." : row.advantage < 0 ? ": what it did should become less likely." : ": it teaches nothing.");
  }
  return parts;
}

// `place` of the attempt in its group is sure only if the group is here as a whole.
function groupRewards(row, body, place) {
  const own = body.group_rewards[place] === row.reward ? place : body.group_rewards.indexOf(row.reward);
  return el(
    "p",
    { class: "group-rewards" },
    "Rewards of the group: ",
    body.group_rewards.map((reward, n) => [el("span", { class: `reward ${rewardClass(reward)}${n === own ? " own" : ""}` }, reward === null ? "none" : num(reward)), " "]),
  );
}

function withoutCredit(row) {
  if (row.reward === null) return "So no turn has credit.";
  if (row.advantage === 0) return "An attempt whose A is 0 is left out of the update, so its turns have no credit.";
  return "No credit was recorded for its turns: its iteration did not finish its update, or the algorithm records none.";
}

function sweepWords(steps, row) {
  const order = steps.map((step) => step.turn).join(" \u2192\u00a0");
  return [
    "The turns were updated one after another: ",
    el("span", { class: "order" }, order),
    `. The first was weighted with M = A. After each update M is multiplied by the ratio that the update produced, so that the next turn is judged by what this one has become. ${RATIO}`,
  ];
}

function plainWords() {
  return "This algorithm updates all turns together and carries nothing from one to the next. The weight is the advantage that a turn's tokens were updated with, on average. " + RATIO;
}

const RATIO = "The ratio is what the algorithm compares with its clip: new probability over old, usually a geometric mean per token. The words are about the whole action.";

// Of the whole action, from its log-probs; the ratio may be a mean per token.
function movement({ moved, ratio }) {
  const times = moved ?? ratio;
  if (times === null || times === undefined) return "its ratio was not recorded";
  const change = 100 * (times - 1);
  if (Math.abs(change) < 0.0005) return "did not move";
  if (times >= 2) return `became ${num(times)} times as likely`;
  return `became ${num(Math.abs(change), 2)}% ${change > 0 ? "more" : "less"} likely`;
}

function pushWords(step, weight) {
  if (weight === null) return movement(step);
  const direction = weight > 0 ? "Pushed up" : weight < 0 ? "Pushed down" : "Not pushed";
  const against = weight !== 0 && step.ratio !== null && weight * (step.ratio - 1) < 0 && Math.abs(step.ratio - 1) >= 5e-6;
  const held = step.position === null && step.tokens > 1 ? ", the clip holds some of its tokens" : ", then held back by the clip";
  return `${direction}; ${movement(step)}${step.clipped ? held : ""}${against ? ", against its push: other attempts moved the same weights" : ""}.`;
}

function creditTable(steps, row, carried) {
  const weights = steps.map((step) => (carried ? step.before : (step.weight ?? row.advantage)));
  const most = Math.max(...weights.map((weight) => Math.abs(weight ?? 0)));
  const head = [...(carried ? ["Order"] : []), "Turn", carried ? "M before" : "Weight", "Push", "Ratio", "Clip", ...(carried ? ["M after"] : []), "In words"];
  const rows = steps.map((step, n) => [
    ...(carried ? [step.position] : []),
    el("a", { href: linkTo(row, step.turn) }, `turn ${step.turn}`),
    weights[n] === null ? NONE : signed(weights[n], carried ? digitsToTell(weights[n], step.after) : 3),
    bar(weights[n] ?? 0, most),
    ratioText(step.ratio),
    step.clipped ? el("span", { class: "clip" }, carried ? "bound" : "binds") : "free",
    ...(carried ? [step.after === null ? NONE : signed(step.after, digitsToTell(step.before, step.after))] : []),
    pushWords(step, weights[n]),
  ]);
  const made = table(head, rows, { class: "credit" });
  // On narrow screens a row is a block, and its cells say themselves what they are.
  for (const line of made.tBodies[0].rows) [...line.cells].forEach((cell, n) => head[n] !== "Turn" && head[n] !== "In words" && cell.setAttribute("data-label", head[n]));
  return scrollBox(carried ? "Credit of each turn, in update order" : "Credit of each turn", made);
}

function ending(steps, row, carried) {
  const bound = steps.filter((step) => step.clipped).length;
  const parts = [];
  const last = steps.at(-1).after;
  if (carried && last !== null && row.advantage) parts.push(`At the end of the sweep M is ${signed(last)}, ${num(last / row.advantage)} times A.`);
  if (bound) parts.push(`The clip binds in ${bound === steps.length ? "every turn" : `${count(bound)} of ${plural(steps.length, "turn")}`}.`);
  return parts.join(" ");
}
