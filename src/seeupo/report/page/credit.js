// The credit of one trajectory: reward, group, advantage, then turn by turn in update order.

// A bar from a center line: right and blue is positive, left and orange is negative.
function bar(value, most) {
  const share = most > 0 ? Math.min(1, Math.abs(value) / most) : 0;
  const fill = el("span", { class: value < 0 ? "fill down" : "fill up" });
  fill.style.width = `${50 * share}%`;
  return el("span", { class: "push-bar", "aria-hidden": "true" }, fill);
}

// The score, and the reward if shaping or step rewards make it another number.
function scoreChip({ score, reward }) {
  const kind = scoreClass(score);
  const chip = el("span", { class: `reward ${kind}` }, score === null ? "no score" : `${num(score)} ${SCORE_WORDS[kind]}`);
  return reward === null || reward === score ? chip : [chip, el("span", { class: "hint" }, ` reward ${num(reward)}`)];
}

function creditTrace(row, body, position) {
  return el("section", { class: "credit-trace", "aria-labelledby": "credit-title" }, el("h3", { id: "credit-title" }, "Credit assignment"), ...creditParts(row, body, position));
}

function creditParts(row, body, position) {
  const steps = body.turns
    .map((turn, n) => ({ ...turn.credit, turn: n + 1, moved: turn.logprob_before === null || turn.logprob_after === null ? null : Math.exp(turn.logprob_after - turn.logprob_before), tokens: turn.action_tokens }))
    .filter((step) => step.position !== undefined)
    .sort((a, b) => a.position - b.position || a.turn - b.turn); // null counts as 0: turns that are updated together stay in order
  const paragraphs = [el("p", null, rewardText(row, body))];
  if (body.group_rewards.length > 1) paragraphs.push(groupRewards(row, body, position));
  if (row.phase !== TRAINING) return [...paragraphs, el("p", null, "This is an attempt at a held-out task: it was not trained on, so its turns have no credit.")];
  if (steps.length === 0) return [...paragraphs, el("p", null, withoutCredit(row))];
  const carried = steps.some((step) => step.before !== null);
  paragraphs.push(el("p", null, carried ? sweepText(steps) : TOGETHER));
  if (row.advantage === 0) paragraphs.push(el("p", null, "A is 0, so this attempt had no gradient; its ratios changed only because other attempts changed the weights."));
  paragraphs.push(creditTable(steps, row, carried));
  const end = summaryText(steps, row, carried);
  if (end) paragraphs.push(el("p", null, end));
  return paragraphs;
}

function rewardText(row, body) {
  if (row.reward === null) return "This attempt has no reward: it ended in an infrastructure failure, and such attempts are never scored.";
  const parts = ["This attempt got a reward of ", el("strong", null, num(row.reward)), row.score === row.reward || row.score === null ? "." : `; its score is ${num(row.score)}, and shaping and step rewards make the difference.`];
  if (body.group_mean !== null && body.group_size > 1) {
    const gap = row.reward - body.group_mean;
    const than = Math.abs(gap) < 1e-9 ? "equal to the mean" : `${num(Math.abs(gap))} ${gap > 0 ? "above" : "below"} the mean`;
    parts.push(` Its group, ${count(body.group_size)} attempts at the same task, has a mean of ${num(body.group_mean)}: this attempt is ${than}.`);
  }
  if (row.advantage !== null) {
    parts.push(row.algorithm === "ppo" ? " Its advantage, the mean of what the critic estimated for its tokens, is " : " Its advantage, this difference as the algorithm scales it, is ", el("strong", null, `A = ${signed(row.advantage)}`));
    parts.push(row.advantage > 0 ? ": the update makes its actions more likely." : row.advantage < 0 ? ": the update makes its actions less likely." : ": it does not contribute to the update.");
  }
  return parts;
}

// `position` in the group is reliable only if the whole group is in the page.
function groupRewards(row, body, position) {
  const place = body.group_rewards[position] === row.reward ? position : body.group_rewards.indexOf(row.reward);
  return el(
    "p",
    { class: "group-rewards" },
    "Rewards of the group: ",
    body.group_rewards.map((reward, n) => [el("span", { class: `reward ${scoreClass(reward)}${n === place ? " own" : ""}` }, reward === null ? "none" : num(reward)), " "]),
  );
}

function withoutCredit(row) {
  if (row.reward === null) return "Its turns have no credit.";
  if (row.advantage === 0) return "Attempts with A = 0 are left out of the update, so its turns have no credit.";
  return "No credit was recorded for its turns: the update did not finish, or the algorithm records none.";
}

function sweepText(steps) {
  const order = steps.map((step) => step.turn).join(" \u2192\u00a0");
  return [
    "The turns were updated in this order: ",
    el("span", { class: "order" }, order),
    `. The first one is weighted by the carried advantage M = A. After each update, M is multiplied by the ratio that the update produced, and the next turn is updated with the new M. ${RATIO}`,
  ];
}

const RATIO = "The ratio is the value that the algorithm clips: new over old probability, usually a geometric mean per token. The effect describes the whole action.";
const TOGETHER = `This algorithm updates all turns together and carries nothing from turn to turn. The weight is the mean advantage of a turn's tokens. ${RATIO}`;

// Change of the whole action, from its log-probs; the ratio may be a mean per token.
function changeText({ moved, ratio }) {
  const times = moved ?? ratio;
  if (times === null || times === undefined) return "its ratio was not recorded";
  const change = 100 * (times - 1);
  if (Math.abs(change) < 0.0005) return "did not change";
  if (times >= 2) return `became ${num(times)} times as likely`;
  return `became ${num(Math.abs(change), 2)}% ${change > 0 ? "more" : "less"} likely`;
}

function effectText(step, weight) {
  if (weight === null) return changeText(step);
  const direction = weight > 0 ? "Reinforced" : weight < 0 ? "Discouraged" : "No gradient";
  const against = weight !== 0 && step.ratio !== null && weight * (step.ratio - 1) < 0 && Math.abs(step.ratio - 1) >= 5e-6;
  const held = step.position === null && step.tokens > 1 ? ", with some tokens clipped" : ", then clipped";
  return `${direction}; ${changeText(step)}${step.clipped ? held : ""}${against ? ", against its weight: other attempts changed the same parameters" : ""}.`;
}

function creditTable(steps, row, carried) {
  const weights = steps.map((step) => (carried ? step.before : (step.weight ?? row.advantage)));
  const most = Math.max(...weights.map((weight) => Math.abs(weight ?? 0)));
  const digits = carried ? arrays.max(steps, (step) => distinctDigits(step.before, step.after)) : 3;
  const head = [...(carried ? ["Order"] : []), "Turn", carried ? "M before" : "Weight", "Direction", "Ratio", "Clip", ...(carried ? ["M after"] : []), "Effect"];
  const rows = steps.map((step, n) => [
    ...(carried ? [step.position] : []),
    el("a", { href: linkTo(row, step.turn) }, `turn ${step.turn}`),
    weights[n] === null ? NONE : signed(weights[n], digits),
    bar(weights[n] ?? 0, most),
    ratioText(step.ratio),
    step.clipped ? el("span", { class: "clip" }, "active") : "inactive",
    ...(carried ? [step.after === null ? NONE : signed(step.after, digits)] : []),
    effectText(step, weights[n]),
  ]);
  const credits = table(head, rows, { class: "credit" });
  // On narrow screens the head is hidden and each cell shows its label.
  for (const line of credits.tBodies[0].rows) [...line.cells].forEach((cell, n) => head[n] !== "Turn" && head[n] !== "Effect" && cell.setAttribute("data-label", head[n]));
  return scrollBox(carried ? "Credit of each turn, in update order" : "Credit of each turn", credits);
}

function summaryText(steps, row, carried) {
  const clipped = steps.filter((step) => step.clipped).length;
  const parts = [];
  const last = steps.at(-1).after;
  if (carried && last !== null && row.advantage) parts.push(`After the last update, M is ${signed(last)}, ${num(last / row.advantage)} times A.`);
  if (clipped) parts.push(`The clip is active in ${clipped === steps.length ? "every turn" : `${count(clipped)} of ${plural(steps.length, "turn")}`}.`);
  return parts.join(" ");
}
