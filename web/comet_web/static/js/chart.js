// Charts over time on a canvas: lines, stacked areas, candles with volume. All charts of a page show the same stretch of
// time and share one cursor. A chart is also available as a table, a picture and CSV.
//
//   new Chart(canvas, {kind, unit, names}).update({step_s, end_us, values, marks, summary})
//
// `kind`: line, area, candle (values: open, high, low, close, volume, then lines over them), candle-line (the same, with
// the closes as a line). The newest price of candles has a label, unless `old` is set. Values are oldest first; null is a
// gap. The canvas is in a `.plot` of a figure as ui.chart() makes it.
//
//   data ─► visible.js: the values in range ─► #frame: the area and its scales ─► draw.js
//   chart_gestures.js: pointer, wheel, keys ─► time_view.js: the range, for all charts ─► each is drawn again

import { follow } from "./chart_gestures.js";
import { tools } from "./chart_tools.js";
import { area, bars, candles, clipped, ends, grid, level, line, mark, scales, stacked, tag, times } from "./draw.js";
import { el, svg } from "./el.js";
import { ceiling, clock, fullClock, price, short, tick, tickText, ticks, timeTicks } from "./scale.js";
import { onView, rangeOf, shownView } from "./time_view.js";
import { extentOf, visible } from "./visible.js";

const all = new Set();
const POINTS_MIN = 120;
const MARKS_LISTED = 3;
// A chart of candles shows its newest ones by itself, so wide; other charts on its page show the same time.
const CANDLE_PIXELS = 8;
const CANDLES_MIN = 30;
const PRICE_PIXELS = 48; // of a scale on the right
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
    this.shown = null; // what visible() gives, as it was drawn
    this.selected = null; // [x, x] while a range is being selected
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
    if (!this.isCandle) this.data.values = begun(this.data.values);
    if (String(before.names) !== String(this.data.names) || !this.keys) this.#legend();
    const { summary } = this.data;
    const text = this.figure.querySelector("[data-summary]");
    if (text && summary !== undefined && text.textContent !== summary) text.textContent = summary;
    this.later();
  }

  destroy() {
    all.delete(this);
    this.observer.disconnect();
    this.unview();
    this.over.remove();
  }

  get count() {
    return this.data.values[0]?.length ?? 0;
  }

  get isCandle() {
    return this.data.kind === "candle";
  }

  // ---- what is shown

  // All that it has values for.
  get extent() {
    return extentOf(this.data);
  }

  get range() {
    const { extent } = this;
    if (shownView()) return rangeOf(extent);
    const candles = this.isCandle ? this : [...all].find((each) => each.isCandle && each.count);
    if (!candles) return extent;
    const count = Math.max(CANDLES_MIN, Math.floor((candles.box?.width ?? candles.room?.[0] ?? 0) / CANDLE_PIXELS));
    return { from_us: Math.max(extent.from_us, extent.to_us - count * candles.data.step_s * 1e6), to_us: extent.to_us };
  }

  later() {
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
    clipped(context, this.box, size.height, () => {
      if (this.isCandle) this.#candles(context);
      else this.#lines(context);
      this.#marks(context);
    });
    this.#labels(context);
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

  // Draws the axes and sets `shown`, the values in range, and `box`, the area between the axes.
  #frame(context, size) {
    const { kind, unit, names } = this.data;
    const candle = this.isCandle;
    const { from_us, to_us } = this.range;
    this.shown = visible(this.data, { from_us, to_us }, this.box?.width ?? size.width);
    const values = this.shown.values.filter((_, index) => !this.hidden.has(index));
    this.tops = kind === "area" ? stacked(values) : null;
    const room = Math.max(2, Math.floor(size.height / 44));
    const [low, high] = candle ? this.#span() : [0, ceiling(greatest(this.tops ?? values), room)];
    const font = `${this.font}px ${this.family}`;
    const written = (value) => (candle ? price(value, high - low) : tick(value, unit));
    const found = ticks(low, high, room);
    context.font = font;
    const right = candle || this.canvas.parentElement.dataset.scale === "right";
    this.side = right ? "right" : "left";
    const scale = Math.ceil(Math.max(right ? PRICE_PIXELS : 24, ...found.map((value) => context.measureText(written(value)).width))) + 10;
    const bottom = size.height - this.font - 8;
    const height = bottom - 8;
    this.named = !right && !this.tops && values.length > 1 && values.length < 6 ? names.filter((_, index) => !this.hidden.has(index)) : [];
    const left = right ? 4 : scale;
    const after = right ? scale + 4 : 4 + Math.ceil(Math.max(0, ...this.named.map((name) => context.measureText(name).width + 6)));
    const { first, span } = this.shown;
    this.box = { left, top: 8, width: size.width - left - after, height: candle ? height * 0.78 : height, low, high, first, span };
    this.volume = candle && { ...this.box, top: 8 + height * 0.82, height: height * 0.18, low: 0 };
    this.scale = scales(this.box);
    grid(context, this.box, found, found.map(written), { line: this.colors.line, text: this.colors.text, font, side: this.side });
    const { found: moments, seconds } = timeTicks(from_us, to_us, this.box.width);
    const labels = moments.map((time) => ({ x: this.xOf(time), label: tickText(time, seconds) }));
    times(context, this.box, bottom + 6, labels, { text: this.colors.text, font });
  }

  // The range of prices, with a margin.
  #span() {
    const [, highs, lows, , , ...over] = this.shown.values;
    let [low, high] = [Infinity, -Infinity];
    for (const values of [highs ?? [], lows ?? [], ...over.filter((_, index) => !this.hidden.has(index + 5))]) {
      for (const value of values) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low > high) return [0, 1];
    const air = (high - low) * 0.06 || Math.abs(high) * 0.001 || 1;
    return [low - air, high + air];
  }

  #lines(context) {
    const { values, number } = this.shown;
    let stack = 0;
    values.forEach((each, index) => {
      if (this.hidden.has(index)) return;
      const color = this.#color(index);
      if (!this.tops) return line(context, this.box, each, { color, fill: values.length === 1, step: number });
      const [tops, bottoms] = [this.tops[stack], this.tops[stack - 1]];
      stack += 1;
      area(context, this.box, tops, bottoms, { color });
      line(context, this.box, tops, { color, width: 1, step: number });
    });
  }

  #candles(context) {
    const { values, number } = this.shown;
    const { up, down, text } = this.colors;
    if (this.plain) line(context, this.box, values[3], { color: this.colors.lines[0], step: number });
    else candles(context, this.box, values, { up, down });
    const volume = { ...this.volume, high: greatest([values[4] ?? []]) || 1 };
    if (values[4]) bars(context, volume, values[4], null, { color: text, alpha: 0.35 });
    values.slice(5).forEach((each, index) => {
      if (!this.hidden.has(index + 5)) line(context, this.box, each, { color: this.#color(index + 1), step: number });
    });
  }

  // The names of lines at their ends; of candles the newest price, wherever the range ends.
  #labels(context) {
    const font = `${this.font}px ${this.family}`;
    if (this.isCandle) return this.#lastPrice(context, font);
    if (!this.named.length) return;
    const last = this.shown.values.flatMap((each, index) => {
      const value = each.slice(-Math.ceil(each.length / 20)).findLast((one) => one !== null);
      return this.hidden.has(index) || value === undefined ? [] : [{ y: this.scale.y(value), text: this.data.names[index], color: this.#color(index) }];
    });
    ends(context, this.box, last, { font });
  }

  #lastPrice(context, font) {
    const [open, , , close] = this.data.values;
    const at = close.findLastIndex((value) => value !== null);
    if (at < 0 || this.data.old) return;
    const last = close[at];
    const color = last >= (open[at] ?? last) ? this.colors.up : this.colors.down;
    const y = Math.max(this.box.top, Math.min(this.box.top + this.box.height, this.scale.y(last)));
    level(context, this.box, y, { color });
    tag(context, this.box.left + this.box.width + 4, y, price(last, this.box.high - this.box.low), { color, text: this.colors.surface, font });
  }

  #marks(context) {
    const inside = [];
    const { from_us, to_us } = this.range;
    for (const one of this.data.marks ?? []) {
      if (one[0] < from_us || one[0] > to_us) continue;
      inside.push(one);
      mark(context, this.box, this.xOf(one[0]), { color: this.colors.text });
    }
    this.#listMarks(inside);
  }

  #listMarks(inside) {
    const list = this.figure.querySelector("[data-marks]");
    if (!list) return;
    const said = inside.slice(-MARKS_LISTED).map(([time, text]) => `${clock(time)} ${text}`);
    if (inside.length > MARKS_LISTED) said.unshift(`${inside.length - MARKS_LISTED} more`);
    const text = said.length ? `▾ ${said.join(" · ")}` : "";
    if (list.textContent !== text) [list.textContent, list.hidden, list.title] = [text, !text, text];
  }

  // ---- time and place

  #at(time_us) {
    return Math.floor((time_us - this.shown.start_us) / this.shown.step_us);
  }

  // The middle of a value's time, so that charts with other steps find it.
  #time(index) {
    return this.shown.start_us + (index + 0.5) * this.shown.step_us;
  }

  // The time of a value; of several that are drawn as one, of the first of them.
  stamp(index) {
    return this.shown.start_us + index * this.shown.step_us + this.data.step_s * 5e5;
  }

  xOf(time_us) {
    const { from_us, to_us } = this.range;
    return this.box.left + ((time_us - from_us) / (to_us - from_us)) * this.box.width;
  }

  timeOf(x) {
    const { from_us, to_us } = this.range;
    return from_us + ((x - this.box.left) / this.box.width) * (to_us - from_us);
  }

  // ---- the cursor, shared by time

  get cursorTime() {
    return cursor.time_us;
  }

  // Moves it to the value at a place on this chart; y is null for one that is moved by keys.
  pointAt(time_us, y = null) {
    if (!this.shown) return;
    const [first, last] = [Math.ceil(this.shown.first - 0.5), Math.floor(this.shown.first + this.shown.span - 0.5)];
    const inside = Math.max(0, first, Math.min(this.shown.count - 1, last, this.#at(time_us)));
    point(this, this.#time(inside), y);
  }

  // Moves it by a number of values. Without a cursor it starts at the newest one.
  stepCursor(by) {
    if (this.shown) this.pointAt(this.#time(cursor.time_us === null ? this.shown.count + Math.min(0, by) : this.#at(cursor.time_us) + by));
  }

  hideCursor() {
    point(null, null, null);
  }

  select(range) {
    this.selected = range;
    this.showCursor();
  }

  #cursor() {
    const context = this.over.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.over.width, this.over.height);
    context.scale(this.size.ratio, this.size.ratio);
    if (this.selected) this.#selection(context);
    const index = cursor.time_us === null ? -1 : this.#at(cursor.time_us);
    const inside = index >= 0 && index < this.shown.count;
    this.#figures(inside ? index : null);
    const mine = inside && cursor.chart === this;
    this.readout.hidden = true;
    if (!inside) return;
    const x = this.scale.x(index);
    if (x < this.box.left || x > this.box.left + this.box.width) return;
    const foot = this.size.height - this.font - 8;
    context.strokeStyle = this.colors.cursor;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, this.box.top);
    context.lineTo(Math.round(x) + 0.5, foot);
    context.stroke();
    const font = `${this.font}px ${this.family}`;
    const look = { color: this.colors.strong, text: this.colors.surface, font };
    this.#dots(context, index, x);
    if (!mine) return;
    const half = 32;
    tag(context, Math.max(this.box.left + half, Math.min(this.box.left + this.box.width - half, x)), foot + 8, clock(this.stamp(index)), { ...look, align: "center" });
    const { y } = cursor;
    if (y !== null && y >= this.box.top && y <= this.box.top + this.box.height) {
      level(context, this.box, y, { color: this.colors.cursor });
      const value = this.box.high - ((y - this.box.top) / this.box.height) * (this.box.high - this.box.low);
      const label = this.isCandle ? price(value, this.box.high - this.box.low) : short(value, this.data.unit);
      if (this.side === "right") tag(context, this.box.left + this.box.width + 4, y, label, look);
      else tag(context, this.box.left - 4, y, label, { ...look, align: "right" });
    }
    this.#showReadout(index, x);
  }

  #dots(context, index, x) {
    const lines = this.tops ?? (this.isCandle ? [] : this.shown.values.filter((_, at) => !this.hidden.has(at)));
    const colors = this.shown.values.map((_, at) => at).filter((at) => !this.hidden.has(at)).map((at) => this.#color(at));
    lines.forEach((values, at) => {
      if (values[index] === null || values[index] === undefined) return;
      context.fillStyle = colors[at];
      context.beginPath();
      context.arc(x, this.scale.y(values[index]), 3, 0, 2 * Math.PI);
      context.fill();
    });
  }

  #selection(context) {
    const [from, to] = this.selected.map((x) => Math.max(this.box.left, Math.min(this.box.left + this.box.width, x)));
    context.fillStyle = this.colors.lines[0];
    context.globalAlpha = 0.18;
    context.fillRect(Math.min(from, to), this.box.top, Math.abs(to - from), this.size.height - this.font - 16);
    context.globalAlpha = 1;
  }

  // What is known at that time. Candles are read in the legend: there it only speaks to screen readers.
  #showReadout(index, x) {
    const { names, marks = [] } = this.data;
    const near = marks.filter(([at]) => Math.abs(this.xOf(at) - x) < 5).map(([, text]) => el("span", {}, text));
    const rows = names.flatMap((name, at) => {
      const value = this.shown.values[at]?.[index];
      return this.hidden.has(at) || value === null || value === undefined ? [] : [el("div", {}, this.#swatch(at), name, el("b", {}, this.written(value, at)))];
    });
    if (!rows.length && !near.length) near.push(el("span", {}, "no data"));
    this.readout.replaceChildren(el("time", {}, fullClock(this.stamp(index))), ...rows, ...near);
    this.readout.classList.toggle("unseen", this.isCandle);
    this.readout.hidden = false;
    if (this.isCandle) return;
    const width = this.readout.offsetWidth;
    const to = x + 12 + width > this.size.width ? x - 12 - width : x + 12;
    this.readout.style.transform = `translateX(${Math.max(0, Math.round(to))}px)`;
  }

  written(value, at = 0) {
    if (this.isCandle && at === 4) return short(value); // volume
    return this.isCandle && this.box ? price(value, this.box.high - this.box.low) : short(value, this.data.unit);
  }

  // The values beside the names: at the cursor, else the last ones.
  #figures(index) {
    this.keys?.forEach((key, at) => {
      const value = index === null ? this.data.values[at]?.at(-1) : this.shown.values[at]?.[index];
      const text = this.written(value, at);
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
    return (this.isCandle ? Math.max(0, at - 4) : at) % COLORS.length; // the first colour is for closes
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

  #listen() {
    this.observer = new ResizeObserver(([{ contentRect }]) => {
      this.room = [Math.round(contentRect.width), Math.round(contentRect.height)];
      this.later();
    });
    this.observer.observe(this.canvas);
    this.unview = onView(() => this.later());
    follow(this);
    tools(this);
    this.figure.querySelector(".legend")?.addEventListener("click", (event) => {
      const key = event.target.closest(".key");
      if (key) this.#toggle(Number(key.dataset.line), key);
    });
    document.addEventListener("comet:theme", () => {
      this.#colors();
      this.later();
    });
  }

  #toggle(index, key) {
    const shown = this.hidden.has(index);
    if (shown) this.hidden.delete(index);
    else this.hidden.add(index);
    key.setAttribute("aria-pressed", String(shown));
    this.later();
  }

  showCursor() {
    if (this.size && this.shown) this.#cursor();
  }
}

const cursor = { chart: null, time_us: null, y: null };

function point(chart, time_us, y) {
  Object.assign(cursor, { chart, time_us, y });
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
