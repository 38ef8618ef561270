// Charts over time on a canvas: lines, stacked areas, bars, candles with volume. All charts of a page share one cursor:
// the pointer or the arrow keys move it. A chart is also available as a table.
//
//   new Chart(canvas, {kind, unit, names}).update({step_s, end_us, values, marks, summary})
//
// `kind`: line, area, bar, candle (values: open, high, low, close, volume, then lines over them), candle-line (the same,
// with the closes as a line). Values are oldest first; null is a gap. The canvas is in a `.plot` of
// a figure as ui.chart() makes it.

import { area, bars, candles, ends, grid, line, mark, scales, stacked, times } from "./draw.js";
import { el, svg } from "./el.js";
import { ceiling, clock, price, short, tick, ticks, timeTicks } from "./scale.js";

const all = new Set();
const TABLE_ROWS = 60;
const POINTS_MIN = 120;
const COLORS = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7"];
const NAMED = { text: "--muted", strong: "--text", line: "--line", cursor: "--line-strong", up: "--up", down: "--down", surface: "--surface" };

export class Chart {
  constructor(canvas, { kind = "line", unit = "", names = [] } = {}) {
    this.canvas = canvas;
    this.figure = canvas.closest("figure") ?? canvas.parentElement;
    this.over = el("canvas", { "aria-hidden": "true", class: "over" });
    this.over.style.pointerEvents = "none";
    canvas.after(this.over);
    this.readout = this.figure.querySelector("[data-readout]") ?? canvas.parentElement.appendChild(el("div", { class: "readout", hidden: true }));
    this.hidden = new Set();
    this.data = { kind, unit, names, values: [], marks: [], step_s: 1, end_us: 0 };
    this.cost_ms = 0; // of the last drawing
    this.size = null;
    this.room = null;
    this.pending = false;
    this.#colors();
    this.#listen();
    all.add(this);
  }

  update(data) {
    const before = this.data;
    this.data = { ...before, ...data };
    this.plain = this.data.kind === "candle-line";
    if (this.plain) this.data.kind = "candle";
    if (this.data.kind !== "candle") this.data.values = begun(this.data.values);
    if (String(before.names) !== String(this.data.names) || !this.keys) this.#legend();
    const { summary } = this.data;
    const text = this.figure.querySelector("[data-summary]");
    if (text && summary !== undefined && text.textContent !== summary) text.textContent = summary;
    this.#later();
  }

  destroy() {
    all.delete(this);
    this.observer.disconnect();
    this.over.remove();
  }

  get count() {
    return this.data.values[0]?.length ?? 0;
  }

  #later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.canvas.isConnected) return this.destroy();
      this.draw();
    });
  }

  // ---- drawing

  draw() {
    const began = performance.now();
    const size = this.#fit();
    if (!size || !this.count) return;
    const context = this.canvas.getContext("2d");
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    this.#frame(context, size);
    if (this.data.kind === "candle") this.#candles(context);
    else this.#lines(context);
    this.#marks(context);
    this.#cursor();
    this.cost_ms = performance.now() - began;
  }

  #fit() {
    if (!this.room) this.room = [this.canvas.clientWidth, this.canvas.clientHeight]; // later set by the observer
    const [width, height] = this.room;
    if (!width || !height) return null;
    const ratio = devicePixelRatio || 1;
    if (this.size?.width !== width || this.size.height !== height || this.size.ratio !== ratio) {
      this.size = { width, height, ratio };
      for (const canvas of [this.canvas, this.over]) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
    }
    return this.size;
  }

  // Draws the axes and sets `box`, the area between them.
  #frame(context, size) {
    const { kind, unit, values, names, end_us, step_s } = this.data;
    const shown = values.filter((_, index) => !this.hidden.has(index));
    const candle = kind === "candle";
    this.tops = kind === "area" || kind === "bar" ? stacked(shown) : null;
    const room = Math.max(2, Math.floor(size.height / 44));
    const [low, high] = candle ? span([values[1], values[2], ...values.slice(5)], this.hidden) : [0, ceiling(greatest(this.tops ?? shown), room)];
    const font = `${this.font}px ${this.family}`;
    const written = (value) => (candle ? price(value, high - low) : tick(value, unit));
    const found = ticks(low, high, room);
    context.font = font;
    const left = Math.ceil(Math.max(24, ...found.map((value) => context.measureText(written(value)).width))) + 10;
    const bottom = size.height - this.font - 8;
    const height = bottom - 8;
    this.named = !candle && !this.tops && shown.length > 1 && shown.length < 6 ? names.filter((_, index) => !this.hidden.has(index)) : [];
    const right = 4 + Math.ceil(Math.max(0, ...this.named.map((name) => context.measureText(name).width + 6)));
    this.box = { left, top: 8, width: size.width - left - right, height: candle ? height * 0.78 : height, low, high };
    this.volume = candle && { ...this.box, top: 8 + height * 0.82, height: height * 0.18, low: 0 };
    this.scale = scales(this.box, this.count, kind === "candle" || kind === "bar");
    grid(context, this.box, found, found.map(written), { line: this.colors.line, text: this.colors.text, font });
    const from_us = end_us - (this.count - 1) * step_s * 1e6;
    const { found: moments, seconds } = timeTicks(from_us, end_us, this.box.width);
    const labels = moments.map((time) => ({ x: this.scale.x(this.#at(time)), label: clock(time, seconds) }));
    times(context, this.box, bottom + 6, labels, { text: this.colors.text, font });
  }

  #lines(context) {
    const { kind, values } = this.data;
    const step = Math.round(this.data.end_us / 1e6 / this.data.step_s);
    let stack = 0;
    values.forEach((each, index) => {
      if (this.hidden.has(index)) return;
      const color = this.#color(index);
      if (this.tops) {
        const [tops, bottoms] = [this.tops[stack], this.tops[stack - 1]];
        stack += 1;
        if (kind === "bar") return bars(context, this.box, tops, bottoms, { color });
        area(context, this.box, tops, bottoms, { color });
        return line(context, this.box, tops, { color, width: 1, step });
      }
      line(context, this.box, each, { color, fill: values.length === 1, step });
    });
    if (!this.named.length) return;
    const last = values.flatMap((each, index) => {
      const value = each.slice(-Math.ceil(each.length / 20)).findLast((one) => one !== null);
      return this.hidden.has(index) || value === undefined ? [] : [{ y: this.scale.y(value), text: this.data.names[index], color: this.#color(index) }];
    });
    ends(context, this.box, last, { font: context.font });
  }

  #candles(context) {
    const { values } = this.data;
    const { up, down, text, strong } = this.colors;
    if (this.plain) line(context, this.#slotted(), values[3], { color: this.colors.lines[0] });
    else candles(context, this.box, values, { up, down });
    const volume = { ...this.volume, high: greatest([values[4] ?? []]) || 1 };
    if (values[4]) bars(context, volume, values[4], null, { color: text, alpha: 0.35 });
    values.slice(5).forEach((each, index) => {
      if (!this.hidden.has(index + 5)) line(context, this.#slotted(), each, { color: this.#color(index + 1) });
    });
    const last = values[3].findLast((value) => value !== null);
    if (last === undefined) return;
    const at = Math.round(scales(this.box, 2, false).y(last)) + 0.5;
    context.setLineDash([3, 3]);
    context.strokeStyle = strong;
    context.beginPath();
    context.moveTo(this.box.left, at);
    context.lineTo(this.box.left + this.box.width, at);
    context.stroke();
    context.setLineDash([]);
    const label = price(last, this.box.high - this.box.low);
    const width = context.measureText(label).width + 8;
    context.fillStyle = strong;
    context.fillRect(this.box.left - width - 2, at - this.font / 2 - 3, width, this.font + 6);
    context.fillStyle = this.colors.surface;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(label, this.box.left - 6, at);
  }

  // Lines go through the middles of the slots of candles.
  #slotted() {
    const per = this.box.width / this.count;
    return { ...this.box, left: this.box.left + per / 2, width: this.box.width - per };
  }

  #marks(context) {
    for (const [time] of this.data.marks ?? []) {
      const at = this.#at(time);
      if (at >= 0 && at <= this.count - 1) mark(context, this.box, this.scale.x(at), { color: this.colors.text });
    }
  }

  // ---- the cursor, shared by time

  #at(time_us) {
    return this.count - 1 - (this.data.end_us - time_us) / (this.data.step_s * 1e6);
  }

  #time(index) {
    return this.data.end_us - (this.count - 1 - index) * this.data.step_s * 1e6;
  }

  #cursor() {
    const context = this.over.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.over.width, this.over.height);
    const index = cursor.time_us === null ? -1 : Math.round(this.#at(cursor.time_us));
    const inside = index >= 0 && index < this.count && this.box;
    this.#figures(inside ? index : null);
    const mine = inside && cursor.chart === this;
    this.readout.hidden = !mine;
    if (!inside) return;
    const x = this.scale.x(index);
    context.scale(this.size.ratio, this.size.ratio);
    context.strokeStyle = this.colors.cursor;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, this.box.top);
    context.lineTo(Math.round(x) + 0.5, this.size.height - this.font - 8);
    context.stroke();
    const lines = this.tops ?? (this.data.kind === "candle" ? [] : this.data.values.filter((_, at) => !this.hidden.has(at)));
    const colors = this.data.values.map((_, at) => at).filter((at) => !this.hidden.has(at)).map((at) => this.#color(at));
    lines.forEach((values, at) => {
      if (values[index] === null || values[index] === undefined) return;
      context.fillStyle = colors[at];
      context.beginPath();
      context.arc(x, this.scale.y(values[index]), 3, 0, 2 * Math.PI);
      context.fill();
    });
    if (mine) this.#showReadout(index, x);
  }

  #showReadout(index, x) {
    const { names, values, marks = [] } = this.data;
    const time = this.#time(index);
    const near = marks.filter(([at]) => Math.abs(this.scale.x(this.#at(at)) - x) < 5).map(([, text]) => el("span", {}, text));
    const rows = names.flatMap((name, at) => (this.hidden.has(at) ? [] : [el("div", {}, this.#swatch(at), name, el("b", {}, this.written(values[at]?.[index], at)))]));
    this.readout.replaceChildren(el("time", {}, `${clock(time)} UTC`), ...rows, ...near);
    const width = this.readout.offsetWidth;
    const to = x + 12 + width > this.size.width ? x - 12 - width : x + 12;
    this.readout.style.transform = `translateX(${Math.max(0, Math.round(to))}px)`;
  }

  written(value, at = 0) {
    if (this.data.kind === "candle" && at === 4) return short(value); // volume
    return this.data.kind === "candle" && this.box ? price(value, this.box.high - this.box.low) : short(value, this.data.unit);
  }

  // The values beside the names: at the cursor, else the last ones.
  #figures(index) {
    this.keys?.forEach((key, at) => {
      const values = this.data.values[at] ?? [];
      const text = this.written(index === null ? values.at(-1) : values[index], at);
      const shown = key.querySelector("[data-last]");
      if (shown && shown.textContent !== text) shown.textContent = text;
    });
  }

  // ---- around it

  #legend() {
    const legend = this.figure.querySelector(".legend");
    if (!legend) return void (this.keys = []);
    const { names } = this.data;
    const there = [...legend.querySelectorAll(".key")];
    if (there.length !== names.length || there.some((key, at) => key.querySelector("span")?.textContent !== names[at])) {
      const made = names.map((name, at) =>
        el("button", { type: "button", class: "key", "aria-pressed": "true", dataset: { line: at } }, this.#swatch(at), el("span", {}, name), " ", el("b", { dataset: { last: "" } })),
      );
      legend.replaceChildren(...made);
      this.hidden.clear();
    }
    this.keys = [...legend.querySelectorAll(".key")];
  }

  #swatch(at) {
    return svg("svg", { class: `swatch s${this.#slot(at)}`, "aria-hidden": "true", viewBox: "0 0 16 8" }, svg("path", { d: "M0 4H16" }));
  }

  #slot(at) {
    return (this.data.kind === "candle" ? Math.max(0, at - 4) : at) % COLORS.length; // the first colour is for closes
  }

  #color(at) {
    return this.colors.lines[at % COLORS.length];
  }

  // A canvas takes no CSS variables: an element resolves them.
  #colors() {
    const style = getComputedStyle(this.over);
    const resolved = (name) => {
      this.over.style.color = `var(${name})`;
      return style.color;
    };
    this.colors = Object.fromEntries(Object.entries(NAMED).map(([name, variable]) => [name, resolved(variable)]));
    this.colors.lines = COLORS.map(resolved);
    this.family = style.fontFamily;
    this.font = Math.round(0.6875 * parseFloat(getComputedStyle(document.documentElement).fontSize));
  }

  #table() {
    const { names, values, step_s } = this.data;
    const stride = Math.max(1, Math.ceil(this.count / TABLE_ROWS));
    const rows = [];
    for (let at = this.count - 1; at >= 0; at -= stride) {
      rows.push(el("tr", {}, el("td", {}, `${clock(this.#time(at))} UTC`), values.map((each, line) => el("td", { class: "n" }, this.written(each[at], line)))));
    }
    const head = el("tr", {}, el("th", { scope: "col" }, `Time, every ${stride * step_s} s`), names.map((name) => el("th", { scope: "col", class: "n" }, name)));
    this.figure.querySelector("[data-rows]").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
  }

  #listen() {
    this.observer = new ResizeObserver(([{ contentRect }]) => {
      this.room = [Math.round(contentRect.width), Math.round(contentRect.height)];
      this.#later();
    });
    this.observer.observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      const x = event.offsetX - this.box.left;
      const index = Math.round(this.data.kind === "candle" || this.data.kind === "bar" ? x / this.scale.per - 0.5 : x / this.scale.per);
      this.#move(index);
    });
    this.canvas.addEventListener("pointerleave", () => point(null, null));
    this.canvas.addEventListener("blur", () => point(null, null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.figure.querySelector(".legend")?.addEventListener("click", (event) => {
      const key = event.target.closest(".key");
      if (key) this.#toggle(Number(key.dataset.line), key);
    });
    this.figure.querySelector(".as-table")?.addEventListener("toggle", (event) => event.target.open && this.#table());
    document.addEventListener("comet:theme", () => {
      this.#colors();
      this.#later();
    });
  }

  #toggle(index, key) {
    const shown = this.hidden.has(index);
    if (shown) this.hidden.delete(index);
    else this.hidden.add(index);
    key.setAttribute("aria-pressed", String(shown));
    this.#later();
  }

  #key(event) {
    const at = cursor.time_us === null ? this.count : Math.round(this.#at(cursor.time_us));
    const far = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: this.count - 1 }[event.key];
    if (event.key === "Escape") return point(null, null);
    if (to === undefined) return;
    event.preventDefault();
    this.#move(to);
  }

  #move(index) {
    if (this.count) point(this, this.#time(Math.max(0, Math.min(this.count - 1, index))));
  }

  showCursor() {
    if (this.size) this.#cursor();
  }
}

const cursor = { chart: null, time_us: null };

function point(chart, time_us) {
  cursor.chart = chart;
  cursor.time_us = time_us;
  for (const each of all) each.showCursor();
}

// The values from the first known one on, at least POINTS_MIN, so that young series fill the width.
function begun(lines) {
  const known = lines.map((values) => values.findIndex((value) => value !== null)).filter((at) => at >= 0);
  const first = Math.min(...known, (lines[0]?.length ?? 0) - POINTS_MIN);
  return first > 0 ? lines.map((values) => values.slice(first)) : lines;
}

function greatest(lines) {
  let found = 0;
  for (const values of lines) for (const value of values) if (value > found) found = value;
  return found;
}

// The range of prices, with a margin.
function span(lines, hidden) {
  let [low, high] = [Infinity, -Infinity];
  lines.forEach((values, index) => {
    if (!values || (index > 1 && hidden.has(index + 3))) return;
    for (const value of values) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  });
  if (low > high) return [0, 1];
  const air = (high - low) * 0.06 || Math.abs(high) * 0.001 || 1;
  return [low - air, high + air];
}
