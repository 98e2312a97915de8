// One pane: a model, a policy, budgets and a layer, over the text. Every text is inserted as text.
"use strict";

const MOST_LISTED = 12;

function make(kind, parent, text, classes) {
  const found = document.createElement(kind);
  if (text !== undefined) found.textContent = text;
  if (classes) found.className = classes;
  if (parent) parent.append(found);
  return found;
}

// A token as it is shown: the blank in front of a word, the word, and whether that is a sign for what cannot be seen.
function shown(token) {
  if (token === "") return ["", "·", true];
  if (/^[\n\r]+$/.test(token)) return ["", "⏎\n", true];
  if (token === "\t") return ["", "⇥\t", true];
  return token.length > 1 && token.startsWith(" ") ? [" ", token.slice(1), false] : ["", token, false];
}

const plain = (token) => JSON.stringify(token.trim() || token).slice(1, -1) || "·";
const number = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

class Pane {
  constructor(explorer, state) {
    this.explorer = explorer;
    this.state = state;
    this.root = make("section", null, undefined, "pane");
    this.controls = make("div", this.root, undefined, "controls");
    this.tokens = make("div", this.root, undefined, "tokens");
    this.tokens.tabIndex = 0;
    this.tokens.setAttribute("aria-label", "the text; arrow keys move through it");
    this.side = make("aside", this.root);
    this.tokens.addEventListener("click", (event) => {
      const place = event.target.dataset ? event.target.dataset.token : undefined;
      if (place !== undefined) explorer.choose(Number(place));
    });
    this.side.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && row.dataset.layer !== undefined) this.change({ layer: Number(row.dataset.layer) });
      if (row && row.dataset.token !== undefined) explorer.choose(Number(row.dataset.token));
    });
    this.build();
  }

  get subject() {
    return this.explorer.subjects[this.state.model];
  }

  change(what) {
    Object.assign(this.state, what);
    if ("model" in what || "policy" in what) this.fit();
    if ("model" in what || "policy" in what) this.build();
    this.explorer.draw();
  }

  // Whatever a link says, the state fits the subject.
  fit() {
    const { subject, state } = this;
    state.layer = Math.min(Math.max(0, state.layer | 0), subject.layers - 1);
    const policies = ["none", ...new Set(subject.runs.map((run) => run.policy))];
    if (!policies.includes(state.policy)) state.policy = "none";
    const stops = subject.stops(state.policy);
    const nearest = (k) => stops.reduce((best, stop) => (Math.abs(stop - k) < Math.abs(best - k) ? stop : best), subject.size);
    const own = subject.sameBudgets(state.policy, state.budgets) >= 0;
    state.budgets = Array.from({ length: subject.layers }, (_, l) =>
      own ? state.budgets[l] : nearest(Number.isFinite(state.budgets[l]) ? state.budgets[l] : subject.size));
  }

  build() {
    this.fit();
    const { subject, state, controls } = this;
    controls.replaceChildren();
    const choice = (name, options, value, act) => {
      const label = make("label", controls, name);
      const select = make("select", label);
      for (const [key, text] of options) {
        const option = make("option", select, text);
        option.value = key;
      }
      select.value = String(value);
      select.addEventListener("change", () => act(select.value));
      return select;
    };
    const names = this.explorer.subjects.map((each, i) => [String(i), each.model]);
    if (names.length > 1) choice("model", names, state.model, (value) => this.change({ model: Number(value) }));
    const kinds = subject.kinds.map((kind, l) => [String(l), kind === "selective" ? `${l}` : `${l} (${kind})`]);
    this.layerSelect = choice("layer", kinds, state.layer, (value) => this.change({ layer: Number(value) }));
    const policies = [...new Set(subject.runs.map((run) => run.policy))];
    choice("policy", [["none", "none"], ...policies.map((p) => [p, p])], state.policy,
      (value) => this.change({ policy: value }));
    this.sliders = [];
    if (state.policy !== "none") {
      const stops = subject.stops(state.policy);
      const slider = (name, all) => {
        const label = make("label", controls, name);
        const input = make("input", label);
        input.type = "range";
        input.min = 0;
        input.max = stops.length - 1;
        input.dataset.all = all ? "1" : "";
        const output = make("output", label);
        input.addEventListener("input", () => {
          const k = stops[Number(input.value)];
          this.change({ budgets: state.budgets.map((old, l) => (all || l === state.layer ? k : old)) });
        });
        this.sliders.push({ input, output, all, stops });
      };
      slider("K of all layers", true);
      slider("of this layer", false);
      this.badge = make("span", controls, "", "badge");
    }
    const drawn = [];
    this.spans = subject.tokens.map((token, place) => {
      const [before, text, sign] = shown(token);
      const span = make("span", null, text, sign ? "sign" : "");
      span.dataset.token = place;
      if (before) drawn.push(before);
      drawn.push(span);
      return { span, sign: span.className, look: "" };
    });
    this.tokens.replaceChildren(...drawn);
  }

  async draw(position, chosen) {
    const { subject, state } = this;
    const wanted = (this.wanted = {}); // whoever comes later wins
    const at = Math.min(position, subject.size - 1);
    const [layer, gone] = await Promise.all([
      subject.layer(state.layer),
      subject.leaving(state.policy, state.budgets, state.layer),
    ]);
    const layers = await this.heldBy(at, chosen !== null && chosen < subject.size ? chosen : null);
    if (this.wanted !== wanted) return;
    this.layerSelect.value = String(state.layer);
    for (const { input, output, all, stops } of this.sliders) {
      const own = all ? state.budgets : [state.budgets[state.layer]];
      const same = own.every((k) => k === own[0]);
      const nearest = stops.indexOf(stops.reduce((a, b) => (Math.abs(b - own[0]) < Math.abs(a - own[0]) ? b : a)));
      input.value = nearest;
      output.textContent = same ? String(own[0]) : "mixed";
    }
    if (state.policy !== "none") {
      this.badge.textContent = gone.exact ? "exact" : "approximate";
      this.badge.className = `badge ${gone.exact ? "exact" : "approximate"}`;
      this.badge.title = gone.from;
    }
    this.drawTokens(at, chosen, layer, gone.at);
    this.drawSide(at, chosen, layer, gone, layers);
    this.drawn = { at, layer: state.layer, gone };
  }

  drawTokens(at, chosen, { levels, step, weights }, gone) {
    const from = corner(at);
    let most = 1;
    for (let j = 0; j <= at; j++) most = Math.max(most, weights[from + j]);
    for (let j = 0; j < this.spans.length; j++) {
      const held = this.spans[j];
      const later = j > at, left = !later && gone[j] <= at;
      const hides = later || !levels ? 0 : 1 - Math.exp(-Math.max(0, levels[from + j] * step));
      const lit = later || left ? 0 : (0.7 * weights[from + j]) / most;
      const classes = `${held.sign}${later ? " later" : ""}${left ? " gone" : ""}${j === at ? " looks" : ""}${j === chosen ? " chosen" : ""}`;
      const look = `${classes}|${hides.toFixed(2)}|${lit.toFixed(2)}`;
      if (look === held.look) continue;
      held.look = look;
      held.span.className = classes;
      held.span.style.textDecorationColor = hides > 0.005 ? `rgba(var(--red), ${hides.toFixed(2)})` : "transparent";
      held.span.style.backgroundColor = lit > 0.005 ? `rgba(var(--blue), ${lit.toFixed(2)})` : "transparent";
    }
  }

  // Of each layer: how many tokens it holds when the row attends, and when the chosen token is evicted, if that is known.
  async heldBy(at, chosen) {
    const { subject, state } = this;
    if (state.policy === "none") return null;
    const known = subject.sameBudgets(state.policy, state.budgets) >= 0 || isWindow(state.policy);
    const found = [];
    for (let l = 0; l < subject.layers; l++) {
      if (!known && l !== state.layer) {
        found.push({ held: Math.min(at + 1, state.budgets[l]) }); // a layer is full from its K-th token on
        continue;
      }
      const { at: steps } = await subject.leaving(state.policy, state.budgets, l);
      let held = 0;
      for (let j = 0; j <= at; j++) if (steps[j] > at) held++;
      found.push({ held, left: chosen === null ? undefined : steps[chosen] });
    }
    return found;
  }

  drawSide(at, chosen, layer, gone, layers) {
    const { subject, state, side } = this;
    const token = chosen !== null && chosen < subject.size;
    side.replaceChildren();
    if (token) this.drawToken(at, chosen, layer, gone);
    else make("p", side, "Click a token: which tokens masked it, by how much, and when it was evicted.", "note");
    make("h2", side, "Layers");
    const table = make("table", side);
    const head = make("tr", table);
    const names = layers ? ["layer", "K", "held", ...(token ? ["evicted at"] : [])] : ["layer", "attention"];
    for (const name of names) make("th", head, name);
    for (let l = 0; l < subject.layers; l++) {
      const row = make("tr", table, undefined, l === state.layer ? "here" : "");
      row.dataset.layer = l;
      make("td", row, String(l));
      if (!layers) {
        make("td", row, subject.kinds[l]);
        continue;
      }
      const { held, left } = layers[l];
      make("td", row, String(state.budgets[l]));
      const cell = make("td", row, `${held} `);
      const bar = make("span", make("span", cell, undefined, "track"), undefined, "bar");
      bar.style.width = `${Math.max(1, Math.round((100 * held) / (at + 1)))}%`;
      if (token) make("td", row, left === undefined ? "?" : left < subject.size ? String(left) : "never");
    }
    if (layers) {
      const alone = subject.runs.some((run) => run.policy === state.policy && run.per_head);
      const full = subject.layers * (at + 1);
      const sum = layers.reduce((all, { held }, l) => all + (alone ? Math.min(at + 1, state.budgets[l]) : held), 0);
      make("p", side, `${sum.toLocaleString("en")} of ${full.toLocaleString("en")} entries are held: ${number(full / sum)} times less.`);
      if (alone) {
        make("p", side, "Each head keeps K tokens of its own here: a token is gone when the last head lets it go.", "note");
      }
    }
    if (layers) make("p", side, gone.from, "note from");
    make("p", side, "F and attention are those of the whole cache.", "note");
  }

  drawToken(at, j, { levels, step }, gone) {
    const { subject, side } = this;
    make("h2", side, `“${plain(subject.tokens[j])}”, token ${j}`);
    const left = gone.at[j];
    if (this.state.policy !== "none") {
      make("p", side, left < subject.size
        ? `Evicted from this layer at step ${left}, before “${plain(subject.tokens[left])}” looks.${gone.exact ? "" : " (approximate)"}`
        : `Stays in this layer to the end.${gone.exact ? "" : " (approximate)"}`);
    }
    if (!levels) {
      make("p", side, "This layer does not select: it masks no token.", "note");
      return;
    }
    if (j <= at) make("p", side, `F for the framed token: ${number(levels[corner(at) + j] * step)}`);
    const list = (title, rows, none) => {
      make("h2", side, title);
      if (!rows.length) {
        make("p", side, none, "note");
        return;
      }
      const table = make("table", side);
      const head = make("tr", table);
      for (const name of ["token", "at", "S"]) make("th", head, name);
      for (const [place, much] of rows.slice(0, MOST_LISTED)) {
        const row = make("tr", table, undefined, place > at ? "later" : "");
        row.dataset.token = place;
        make("td", row, plain(subject.tokens[place]));
        make("td", row, String(place));
        make("td", row, number(much));
      }
      if (rows.length > MOST_LISTED) make("p", side, `and ${rows.length - MOST_LISTED} more`, "note");
    };
    const by = maskers(levels, step, subject.size, subject.shift, j).map(({ by, much }) => [by, much]);
    list("Masked by", by, "no token");
    list("Masks", masked(levels, step, subject.size, subject.shift, j).map(({ whom, much }) => [whom, much]), "no token");
  }
}
