// The data in this file: chunks of base64(gzip(JSON)), decoded when they are needed.

const PHASES = ["training", "held-out, before", "held-out, after"];
const TRAINING = 0, BEFORE = 1, AFTER = 2;
const CACHED_CHUNKS = 16; // decoded chunks that stay in memory

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function decoded(id) {
  const element = byId(id);
  if (element === null) throw new Error(`the part "${id}" is missing because the file is incomplete`);
  const packed = new Blob([bytesOf(element.textContent.trim())]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// One row per trajectory, stored as columns. Repeated texts are stored once in lists.
class Index {
  constructor(raw, runs) {
    this.rows = raw.rows;
    this.lists = raw.lists;
    this.columns = raw.columns;
    this.runs = runs;
    this.chunks = new Map();
  }

  row(i) {
    const { columns, lists } = this;
    return {
      i,
      run: columns.run[i],
      runName: this.runs[columns.run[i]].name,
      algorithm: this.runs[columns.run[i]].algorithm,
      phase: columns.phase[i],
      iteration: columns.iteration[i],
      id: columns.id[i],
      group: columns.group[i],
      task: lists.tasks[columns.task[i]],
      kind: lists.kinds[columns.kind[i]],
      stop: lists.stops[columns.stop[i]],
      status: lists.statuses[columns.status[i]],
      score: columns.score[i],
      reward: columns.reward[i],
      advantage: columns.advantage[i],
      turns: columns.turns[i],
    };
  }

  find(runName, phase, id) {
    const run = this.runs.findIndex(({ name }) => name === runName);
    const { columns } = this;
    for (let i = 0; i < this.rows; i++) {
      if (columns.id[i] === id && columns.run[i] === run && columns.phase[i] === phase) return i;
    }
    return -1;
  }

  // Rows of the same group, which are adjacent.
  group(i) {
    const { columns } = this;
    const same = (j) => ["run", "phase", "iteration", "group"].every((name) => columns[name][i] === columns[name][j]);
    let first = i;
    let last = i;
    while (first > 0 && same(first - 1)) first--;
    while (last < this.rows - 1 && same(last + 1)) last++;
    return Array.from({ length: last - first + 1 }, (_, k) => first + k);
  }

  chunk(n) {
    const bodies = this.chunks.get(n) ?? decoded(`bodies-${n}`);
    this.chunks.delete(n);
    this.chunks.set(n, bodies); // the most recently used is last
    if (this.chunks.size > CACHED_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    return bodies;
  }

  async body(i) {
    return (await this.chunk(this.columns.chunk[i]))[this.columns.offset[i]];
  }
}

function scoreClass(score) {
  if (score === null) return "none";
  if (score >= 1) return "solved";
  return score > 0 ? "partly" : "failed";
}

const SCORE_WORDS = { solved: "solved", partly: "partly solved", failed: "not solved", none: "no score" };

function textOf(turn) {
  return turn.tokens.map((token) => token[0]).join("");
}

// Parts of a turn in order: [{thought, from, to}], covering all tokens.
function partsOf(turn) {
  const parts = [];
  let at = 0;
  const add = (thought, to) => {
    if (to > at) parts.push({ thought, from: at, to });
    at = Math.max(at, to);
  };
  for (const [from, to] of turn.thoughts) {
    add(false, from);
    add(true, to);
  }
  add(false, turn.tokens.length);
  return parts;
}

// The thoughts of a turn, or its action.
function partText(turn, thought) {
  return partsOf(turn)
    .filter((part) => part.thought === thought)
    .map((part) => turn.tokens.slice(part.from, part.to).map((token) => token[0]).join(""))
    .join("");
}

function actionOf(turn) {
  return partText(turn, false);
}
