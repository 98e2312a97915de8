// The page: what both panes share, the address bar, the keyboard, and new text where the page is served.
"use strict";

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const fraction = (step) => (Number.isInteger(1 / step) ? `1/${1 / step}` : Number(step.toPrecision(3)).toString());

class Explorer {
  constructor(header, blob) {
    this.position = Infinity;
    this.chosen = null;
    this.timer = null;
    this.load(header, blob);
    this.listen();
    this.read();
  }

  load(header, blob) {
    this.header = header;
    this.subjects = header.subjects.map((each, i) => new Subject(each, (name) => blob(`${i}-${name}`)));
    const first = this.subjects[0];
    const steps = this.subjects.flatMap((each) => each.f).filter((step) => step !== null);
    const precise = steps.length ? ` F is rounded to steps of ${fraction(Math.max(...steps))}.` : "";
    const cut = first.cut_from > first.size ? `, cut from ${first.cut_from.toLocaleString("en")}` : "";
    const names = [...new Set(this.subjects.map((each) => each.model))].join(" and ");
    document.getElementById("about").textContent =
      `${names}: ${first.size.toLocaleString("en")} tokens${cut}, ${first.layers} layers; ${size(header.bytes)}.${precise}`;
    document.title = `What is forgotten: ${names}`;
    document.getElementById("typed").hidden = !header.serve;
  }

  get size() {
    return Math.max(...this.panes.map((pane) => pane.subject.size));
  }

  // -- the address bar ------------------------------------------------------------------------------------------------

  read() {
    const given = new URLSearchParams(location.hash.slice(1) || this.header.view || "");
    const whole = (name, other) => {
      const value = given.get(name);
      return value !== null && /^\d{1,6}$/.test(value) ? Number(value) : other;
    };
    const pane = (suffix, model) => {
      const chosen = Math.min(whole(`m${suffix}`, model), this.subjects.length - 1);
      const subject = this.subjects[chosen];
      const budgets = (given.get(`k${suffix}`) || "").split(",").map((k) => (/^\d{1,6}$/.test(k) ? Number(k) : NaN));
      const one = budgets.length === 1 ? budgets[0] : undefined;
      return {
        model: chosen,
        layer: whole(`l${suffix}`, 0),
        policy: given.get(`w${suffix}`) || "none",
        budgets: Array.from({ length: subject.layers }, (_, l) => (one === undefined ? budgets[l] : one)),
      };
    };
    const two = given.get("two") === "1";
    this.panes = [new Pane(this, pane("", 0))];
    if (two) this.panes.push(new Pane(this, pane("2", this.subjects.length - 1)));
    this.position = Math.min(whole("p", this.size - 1), this.size - 1);
    this.chosen = given.has("t") ? Math.min(whole("t", 0), this.size - 1) : null;
    this.place();
    return this.draw();
  }

  write() {
    const parts = [`p=${this.position}`];
    if (this.chosen !== null) parts.push(`t=${this.chosen}`);
    this.panes.forEach(({ state }, i) => {
      const suffix = i ? "2" : "";
      const same = state.budgets.every((k) => k === state.budgets[0]);
      parts.push(`m${suffix}=${state.model}`, `l${suffix}=${state.layer}`);
      if (state.policy !== "none") {
        parts.push(`w${suffix}=${encodeURIComponent(state.policy)}`, `k${suffix}=${same ? state.budgets[0] : state.budgets.join(",")}`);
      }
    });
    if (this.panes.length > 1) parts.push("two=1");
    this.link = `#${parts.join("&")}`;
    try {
      history.replaceState(null, "", this.link);
    } catch {
      // inside a notebook's frame there is no address bar
    }
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  place() {
    const root = document.getElementById("panes");
    root.replaceChildren(...this.panes.map((pane) => pane.root));
    root.className = this.panes.length > 1 ? "two" : "";
    document.getElementById("compare").setAttribute("aria-pressed", String(this.panes.length > 1));
  }

  draw() {
    const slider = document.getElementById("position");
    slider.max = this.size - 1;
    slider.value = this.position;
    const token = this.panes[0].subject.tokens[this.position];
    document.getElementById("where").textContent =
      `${this.position} of ${this.size - 1}${token === undefined ? "" : `: ${plain(token)}`}`;
    this.write();
    this.ready = Promise.all(this.panes.map((pane) => pane.draw(this.position, this.chosen)));
    return this.ready;
  }

  move(to) {
    this.position = Math.min(Math.max(0, to), this.size - 1);
    return this.draw();
  }

  choose(token) {
    this.chosen = token === null || token === this.chosen ? null : Math.min(Math.max(0, token), this.size - 1);
    return this.draw();
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = null;
    if (on) {
      if (this.position >= this.size - 1) this.position = 0;
      this.timer = setInterval(() => {
        if (this.position >= this.size - 1) this.play(false);
        else this.move(this.position + 1);
      }, this.size > 256 ? 90 : 180);
    }
    document.getElementById("play").textContent = on ? "⏸" : "▶";
    return this.draw();
  }

  compare() {
    if (this.panes.length > 1) this.panes.pop();
    else {
      const { state } = this.panes[0];
      const model = this.subjects.length > 1 ? (state.model + 1) % this.subjects.length : state.model;
      this.panes.push(new Pane(this, { ...state, budgets: [...state.budgets], model }));
    }
    this.place();
    return this.draw();
  }

  budget(by) {
    for (const pane of this.panes) {
      if (pane.state.policy === "none") continue;
      const stops = pane.subject.stops(pane.state.policy);
      const now = stops.findIndex((k) => k >= pane.state.budgets[pane.state.layer]);
      const k = stops[Math.min(Math.max(0, now + by), stops.length - 1)];
      pane.state.budgets = pane.state.budgets.map(() => k);
    }
    return this.draw();
  }

  theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }

  help() {
    const keys = document.getElementById("keys");
    keys.hidden = !keys.hidden;
    document.getElementById("help").setAttribute("aria-expanded", String(!keys.hidden));
  }

  // -- what a user does -----------------------------------------------------------------------------------------------

  listen() {
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("play", () => this.play(this.timer === null));
    on("compare", () => this.compare());
    on("theme", () => this.theme());
    on("help", () => this.help());
    document.getElementById("position").addEventListener("input", (event) => this.move(Number(event.target.value)));
    addEventListener("hashchange", () => this.read());
    addEventListener("keydown", (event) => this.key(event));
    document.getElementById("typed").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(document.getElementById("words").value);
    });
  }

  key(event) {
    const inside = event.target.closest && event.target.closest("textarea, select, input");
    if (event.ctrlKey || event.altKey || event.metaKey || (inside && event.key !== "Escape")) return;
    if (event.key === " " && event.target.closest && event.target.closest("button")) return; // which it presses
    const layers = (by) => {
      for (const pane of this.panes) {
        pane.state.layer = Math.min(Math.max(0, pane.state.layer + by), pane.subject.layers - 1);
      }
      return this.draw();
    };
    const along = (by) => (event.shiftKey ? this.select((this.chosen ?? this.position) + by) : this.move(this.position + by));
    const acts = {
      ArrowLeft: () => along(-1),
      ArrowRight: () => along(1),
      ArrowUp: () => layers(-1),
      ArrowDown: () => layers(1),
      Home: () => this.move(0),
      End: () => this.move(this.size - 1),
      " ": () => this.play(this.timer === null),
      "[": () => this.budget(-1),
      "]": () => this.budget(1),
      s: () => this.choose(this.position),
      c: () => this.compare(),
      d: () => this.theme(),
      "?": () => this.help(),
      Escape: () => this.choose(null),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  select(token) {
    this.chosen = Math.min(Math.max(0, token), this.size - 1);
    return this.draw();
  }

  async ask(text) {
    const answer = document.getElementById("answer");
    answer.textContent = "the model reads …";
    try {
      const reply = await fetch("trace", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ text }),
      });
      const found = await reply.json();
      if (!reply.ok) throw new Error(found.error);
      this.play(false);
      this.load(found.header, (name) => found.blobs[name]);
      this.position = this.chosen = null;
      history.replaceState(null, "", "#");
      await this.read();
      answer.textContent = "";
    } catch (error) {
      answer.textContent = error.message;
    }
  }
}

const began = performance.now();
const explorer = new Explorer(
  JSON.parse(document.getElementById("header").textContent),
  (name) => document.getElementById(`blob-${name}`).textContent,
);
explorer.panes[0].explorer.ready.then(() => {
  explorer.seconds = (performance.now() - began) / 1000;
  explorer.opened = performance.now() / 1000; // since the address was asked for
  document.documentElement.dataset.ready = "1";
});
