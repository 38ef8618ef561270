// The candles of one symbol, oldest first: those of the page's document, those that came before them while the page is
// open, and older ones from the gateway. The last may be one that is forming. What is computed of candles is computed
// from the first one on that has changed.

import { INDICATORS, IndicatorLines } from "./indicators.js";

export const CANDLES_MAX = 20_000;
const CORE = 5; // open, high, low, close, volume; then the lines of the document
const SPREAD = "spread"; // one of them, with a chart of its own
const CLOSE = 3;

export class CandleStore {
  constructor(step_s) {
    this.step_us = step_s * 1e6;
    this.names = [];
    this.lines = [];
    this.first = 0; // the number of the first step, since 1970
    this.indicators = new Map(); // by key
    this.forms = false; // the last one is forming
    this.reached = null; // the step up to which older candles are known
    this.paged = false; // it has older candles than documents gave
    this.begins = ""; // why no candle is older
  }

  get count() {
    return this.lines[0]?.length ?? 0;
  }

  get end_us() {
    return (this.first + this.count) * this.step_us;
  }

  // The names and values of a chart, with the indicators chosen, except for those that have a chart of their own.
  chart() {
    const over = [...this.indicators.values()].filter(({ indicator }) => !indicator.apart);
    const isShown = (_, at) => this.names[at] !== SPREAD;
    return {
      names: [...this.names.filter(isShown), ...over.flatMap(({ indicator }) => indicator.names)],
      values: [...this.lines.filter(isShown), ...over.flatMap(({ lines }) => lines)],
      end_us: this.end_us,
      step_s: this.step_us / 1e6,
    };
  }

  get spread() {
    return this.lines[this.names.indexOf(SPREAD)];
  }

  choose(keys) {
    for (const key of this.indicators.keys()) if (!keys.includes(key)) this.indicators.delete(key);
    for (const indicator of INDICATORS) {
      if (!keys.includes(indicator.key) || this.indicators.has(indicator.key)) continue;
      const made = new IndicatorLines(indicator);
      this.indicators.set(indicator.key, made);
      made.compute(this.lines.length ? this.lines : emptyLines(CORE), 0);
    }
  }

  // Takes the candles of a document; `forming` has the values of the step that is not over, or is null.
  put({ names, values, end_us }, forming) {
    const end = Math.round(end_us / this.step_us);
    const begin = end - values[0].length;
    if (!this.count || begin > this.first + this.count + CANDLES_MAX) this.#reset(begin, values.length);
    if (this.forms) this.#cut(this.count - 1);
    if (String(names) !== String(this.names)) this.#named(names);
    const whole = begin < this.first; // the document has more steps now
    if (whole) this.#extend(this.first - begin);
    while (this.first + this.count < begin) for (const line of this.lines) line.push(null); // the page was paused
    let dirty = whole ? 0 : this.count;
    for (let at = 0; at < values[0].length; at += 1) {
      const to = begin + at - this.first;
      const changed = this.#set(to, values, at);
      if (changed) dirty = Math.min(dirty, to);
    }
    this.forms = Boolean(forming);
    if (forming) this.lines.forEach((line, which) => line.push(forming[which] ?? null));
    this.#trim();
    dirty = Math.max(0, Math.min(dirty, this.count - (forming ? 1 : 0)));
    this.#compute(dirty);
    if (!this.paged) this.reached = this.first + Math.max(0, this.lines[CLOSE].findIndex((close) => close !== null));
  }

  // Takes older candles, as the channel `candles` has them. Returns how many are new.
  putBefore(page) {
    const start = Math.round(page.start_us / this.step_us);
    this.begins = page.begins;
    const more = Math.max(0, this.first - start);
    if (this.count + more > CANDLES_MAX) {
      this.begins ||= `the page keeps ${CANDLES_MAX.toLocaleString("en")} candles`;
      return 0;
    }
    this.#extend(more);
    this.paged = true;
    const core = [page.open, page.high, page.low, page.close, page.volume];
    let found = 0;
    for (let at = 0; at < page.close.length; at += 1) {
      const to = start + at - this.first;
      if (page.close[at] === null || to >= this.count || this.lines[CLOSE][to] !== null) continue;
      core.forEach((line, which) => (this.lines[which][to] = line[at]));
      if (this.spread) this.spread[to] = page.spread[at];
      found += 1;
    }
    this.reached = Math.min(this.reached ?? start, start);
    this.#compute(0);
    return found;
  }

  // A value of the document; one that it does not know any more stays. Whether a candle has changed.
  #set(to, values, at) {
    if (to >= this.count) {
      this.lines.forEach((line, which) => line.push(values[which]?.[at] ?? null));
      return true;
    }
    let changed = false;
    this.lines.forEach((line, which) => {
      const value = values[which]?.[at] ?? null;
      if (value === null || line[to] === value) return;
      line[to] = value;
      changed ||= which < CORE;
    });
    return changed;
  }

  #reset(begin, count) {
    this.first = begin;
    this.lines = emptyLines(count);
    this.forms = false;
    this.names = [];
    this.reached = null;
  }

  #named(names) {
    const over = names.slice(CORE).map((name) => this.lines[this.names.indexOf(name)] ?? new Array(this.count).fill(null));
    this.names = [...names];
    this.lines = [...this.lines.slice(0, CORE), ...over];
  }

  #extend(count) {
    this.lines = this.lines.map((line) => new Array(count).fill(null).concat(line));
    this.first -= count;
  }

  #cut(count) {
    for (const line of this.lines) line.length = count;
  }

  #trim() {
    const over = this.count - CANDLES_MAX;
    if (over <= 0) return;
    for (const line of this.lines) line.splice(0, over);
    for (const { lines } of this.indicators.values()) for (const line of lines) line.splice(0, over);
    this.first += over;
  }

  #compute(from) {
    for (const each of this.indicators.values()) each.compute(this.lines, from);
  }
}

const emptyLines = (count) => Array.from({ length: count }, () => []);
