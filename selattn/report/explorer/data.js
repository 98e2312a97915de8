// The numbers of the page: unpacked when they are needed, a few layers at a time.
"use strict";

const FEW_LAYERS = 6; // that are held unpacked, of each subject

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

async function inflated(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const corner = (row) => (row * (row + 1)) / 2; // where a row of a triangle begins

class Subject {
  constructor(header, blob) {
    Object.assign(this, header);
    this.size = header.tokens.length;
    this.layers = header.kinds.length;
    this.blob = blob;
    this.held = new Map();
    this.steps = new Map();
  }

  // {levels: F in steps, [N (N + 1) / 2], or null; step; weights: in 1/255}
  layer(number) {
    if (!this.held.has(number)) {
      if (this.held.size >= FEW_LAYERS) this.held.delete(this.held.keys().next().value);
      this.held.set(number, this.unpack(number));
    }
    return this.held.get(number);
  }

  async unpack(number) {
    const size = this.size, count = corner(size), step = this.f[number];
    const weights = await inflated(this.blob(`w${number}`));
    if (step === null) return { levels: null, step: 0, weights };
    const raw = await inflated(this.blob(`f${number}`));
    const levels = new Int32Array(count), now = new Int32Array(size);
    for (let row = 0, at = 0; row < size; row++) {
      for (let j = 0; j <= row; j++, at++) {
        const folded = raw[at] | (raw[count + at] << 8);
        now[j] += folded & 1 ? -((folded + 1) >> 1) : folded >> 1;
        levels[at] = now[j];
      }
    }
    return { levels, step, weights };
  }

  // When each token left each layer in a run with budgets, [L * N]: exact.
  evictedAt(run) {
    if (!this.steps.has(run)) {
      this.steps.set(run, inflated(this.blob(`e${run}`)).then((raw) => {
        const half = raw.length / 2, found = new Uint16Array(half);
        for (let i = 0; i < half; i++) found[i] = raw[i] | (raw[half + i] << 8);
        return found;
      }));
    }
    return this.steps.get(run);
  }

  sameBudgets(policy, budgets) {
    return this.runs.findIndex((run) => run.policy === policy && run.budgets.every((k, l) => k === budgets[l]));
  }

  // The budgets that a slider offers: those with a run of their own, and where F can be replayed, some between them.
  stops(policy) {
    const grid = [...new Set(this.runs.filter((run) => run.policy === policy && new Set(run.budgets).size === 1)
      .map((run) => run.budgets[0]))];
    const between = [];
    if (replays(policy)) {
      for (const k of [...grid, this.size]) for (const part of [5 / 8, 3 / 4, 7 / 8]) between.push(Math.round(k * part));
    }
    const all = [...grid, ...between, this.size].filter((k) => k >= 2 && k <= this.size);
    return [...new Set(all)].sort((a, b) => a - b);
  }

  // {at: Uint16Array [N], exact}: when each token leaves a layer.
  async leaving(policy, budgets, layer) {
    const size = this.size;
    if (policy === "none" || budgets.every((k) => k >= size)) return { at: new Uint16Array(size).fill(size), exact: true };
    const run = this.sameBudgets(policy, budgets);
    if (run >= 0) {
      const all = await this.evictedAt(run);
      return { at: all.subarray(layer * size, (layer + 1) * size), exact: true };
    }
    const k = budgets[layer];
    if (k >= size) return { at: new Uint16Array(size).fill(size), exact: false };
    if (isWindow(policy)) return { at: replay(size, k, windowRank(policy, k)), exact: true };
    const { levels } = await this.layer(layer);
    if (policy === "selective") {  // in a layer that does not select, F is 0 everywhere: the oldest leaves
      return { at: replay(size, k, levels ? (row, j) => levels[corner(row) + j] : () => 0), exact: false };
    }
    const like = this.runs.findIndex((each) => each.policy === policy && each.budgets[layer] === k);
    const all = await this.evictedAt(like);
    return { at: all.subarray(layer * size, (layer + 1) * size), exact: false };
  }
}

const isWindow = (policy) => /^window(\+\d+)?$/.test(policy);
const replays = (policy) => policy === "selective" || isWindow(policy);

function windowRank(policy, k) {
  const sinks = Math.min(Number(policy.split("+")[1] || 0), k - 1);
  return (row, j) => (j < sinks ? -Infinity : -j);
}

// Before a row attends, when the budget is used up, the kept token of the highest rank leaves; of equals not the first token, then
// the oldest.
function replay(size, budget, rank) {
  const at = new Uint16Array(size).fill(size), kept = [];
  for (let row = 0; row < size; row++) {
    if (kept.length >= budget) {
      let worst = 0, highest = rank(row, kept[0]);
      for (let place = 1; place < kept.length; place++) {
        const value = rank(row, kept[place]);
        if (value > highest || (value === highest && kept[worst] === 0)) {
          worst = place;
          highest = value;
        }
      }
      at[kept[worst]] = row;
      kept.splice(worst, 1);
    }
    kept.push(row);
  }
  return at;
}

// Who masked token j, most first: [{by, much}]. What row k selects counts from the next row on, unless there is no shift.
function maskers(levels, step, size, shift, j) {
  const found = [];
  for (let row = Math.max(j, 1); row < size; row++) {
    const before = row > j ? levels[corner(row - 1) + j] : 0;
    const rise = levels[corner(row) + j] - before;
    if (rise) found.push({ by: shift ? row - 1 : row, much: rise * step });
  }
  return found.sort((a, b) => b.much - a.much || a.by - b.by);
}

// Whom token k masked, most first.
function masked(levels, step, size, shift, k) {
  const row = shift ? k + 1 : k, found = [];
  if (row >= size) return found;
  for (let j = 0; j <= k; j++) {
    const rise = levels[corner(row) + j] - (row > j ? levels[corner(row - 1) + j] : 0);
    if (rise) found.push({ whom: j, much: rise * step });
  }
  return found.sort((a, b) => b.much - a.much || a.whom - b.whom);
}
