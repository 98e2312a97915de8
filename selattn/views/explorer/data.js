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

  // The run with these budgets, in the first layers or in all.
  sameBudgets(policy, budgets, layers = this.layers) {
    const equal = (k, other) => k === other || (k >= this.size && other >= this.size);
    return this.runs.findIndex((run) =>
      run.policy === policy && run.budgets.slice(0, layers).every((k, l) => equal(k, budgets[l])));
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

  // {at: Uint16Array [N], exact, from}: when each token is evicted from a layer, and how that is known.
  async leaving(policy, budgets, layer) {
    const size = this.size, k = budgets[layer];
    if (policy === "none" || k >= size) return { at: new Uint16Array(size).fill(size), exact: true, from: FROM.room };
    const run = this.sameBudgets(policy, budgets, layer + 1); // the budgets of later layers do not matter to this one
    const stored = async (number) => (await this.evictedAt(number)).subarray(layer * size, (layer + 1) * size);
    if (run >= 0) {
      const whole = this.sameBudgets(policy, budgets) >= 0;
      return { at: await stored(run), exact: true, from: whole ? FROM.forward : FROM.below };
    }
    if (isWindow(policy)) return { at: replay(size, k, windowRank(policy, k)), exact: true, from: FROM.positions };
    if (policy === "selective") {
      const { levels, step } = await this.layer(layer);
      const before = budgets.slice(0, layer).some((other) => other < size);
      if (!levels) return { at: replay(size, k, () => 0), exact: true, from: FROM.oldest };
      return { at: replay(size, k, (row, j) => levels[corner(row) + j]), exact: false, from: FROM.replay(step, before) };
    }
    const like = this.runs.findIndex((each) => each.policy === policy && each.budgets[layer] === k);
    return { at: await stored(like), exact: false, from: FROM.like };
  }
}

// How evictions are known: what is exact, and what replaces a forward that was not made.
const FROM = {
  room: "Exact: this layer has room for every token, so it evicts none.",
  forward: "Exact: from a forward of the model with these budgets.",
  below: "Exact: from a forward of the model with these budgets up to this layer, which later layers do not change.",
  positions: "Exact: a window depends on positions alone, whatever other layers keep.",
  oldest: "Exact: this layer does not select, so F is 0, and the oldest token but the first is evicted.",
  replay: (step, before) =>
    `Approximate: replayed from F of the whole cache, rounded to steps of ${fraction(step)}. The model was not run with these ` +
    `budgets${before ? ": evictions in the layers before this one would change F." : "; but for the rounding, F would be the same."}`,
  like:
    "Approximate: from a forward with this K in this layer and other budgets in those before it. The model was not run with " +
    "these budgets: evictions in the layers before this one would change which tokens are evicted here.",
};

const isWindow = (policy) => /^window(\+\d+)?$/.test(policy);
const replays = (policy) => policy === "selective" || isWindow(policy);

function windowRank(policy, k) {
  const sinks = Math.min(Number(policy.split("+")[1] || 0), k - 1);
  return (row, j) => (j < sinks ? -Infinity : -j);
}

// Before a row attends, when the budget is used up, the kept token of the highest rank is evicted; of equals not the first, then
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
