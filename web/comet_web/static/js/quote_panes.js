// The charts of prices, one or several side by side: each has a symbol, its candles and indicators, and loads older
// candles as it is panned.
//
//   document ─► CandleStore ─┬─► Chart            candles, the job's lines, indicators
//   channel  ─► (older)      └─► volatility, spread   of the first chart

import { chartFor } from "./bind.js";
import { CandleHistory } from "./candle_history.js";
import { CandleStore } from "./candle_store.js";
import { textOf } from "./cell.js";
import { INDICATORS } from "./indicators.js";
import { fullClock } from "./scale.js";
import { store, stored } from "./stored.js";
import { onView } from "./time_view.js";

const IDS = ["price", "price-2", "price-3", "price-4"];
const MEMORY = "quotes.indicators";
const VOLATILITY = "volatility";

export class Panes {
  constructor(live) {
    this.panes = IDS.map((id, at) => new Pane(live, id, at ? `-${at + 1}` : ""));
    this.chosen = stored(MEMORY, []).filter((key) => INDICATORS.some((each) => each.key === key));
    this.#boxes();
    onView(() => this.#want());
  }

  // Shows a document.
  show(found) {
    const loading = textOf(found.fields.state) === "loading history";
    for (const pane of this.panes) pane.show(found, this.chosen, loading);
    this.#volatility();
    this.#spread(found.charts.spread);
    this.#want();
  }

  #boxes() {
    for (const box of document.querySelectorAll("[data-indicator]")) {
      box.checked = this.chosen.includes(box.dataset.indicator);
      box.addEventListener("change", () => {
        this.chosen = INDICATORS.map(({ key }) => key).filter((key) => document.querySelector(`[data-indicator="${key}"]`)?.checked);
        store(MEMORY, this.chosen.length ? this.chosen : null);
        for (const pane of this.panes) pane.choose(this.chosen);
        this.#volatility();
      });
    }
  }

  #volatility() {
    const frame = document.querySelector("[data-volatility]");
    const candles = this.panes[0].store;
    const found = candles?.indicators.get(VOLATILITY);
    frame.hidden = !found;
    if (!found) return;
    const last = found.lines[0].findLast((value) => value !== null);
    chartFor(VOLATILITY, { kind: "line", unit: "%", names: found.indicator.names }).update({
      kind: "line",
      unit: "%",
      names: found.indicator.names,
      values: found.lines,
      step_s: candles.step_us / 1e6,
      end_us: candles.end_us,
      summary: last === undefined ? "not enough candles yet" : `${last.toPrecision(3)} %, ${found.indicator.title}`,
    });
  }

  #spread(chart) {
    const candles = this.panes[0].store;
    if (!chart || !candles?.spread) return;
    const whole = candles.forms ? candles.spread.slice(0, -1) : candles.spread; // the forming candle has none
    const shown = { ...chart, values: [whole], end_us: candles.end_us - (candles.forms ? candles.step_us : 0) };
    chartFor("spread", chart).update(shown);
  }

  #want() {
    for (const pane of this.panes) pane.want();
  }
}

class Pane {
  constructor(live, id, suffix) {
    this.live = live;
    this.id = id;
    this.suffix = suffix; // of its fields
    this.frame = document.querySelector(`[data-chart="${id}"]`).closest("[data-pane]");
    this.shown = ""; // topic, symbol and step
    this.store = null;
    this.history = null;
    this.loading = false;
    this.look = {};
  }

  show({ charts, fields }, chosen, loading) {
    const chart = charts[this.id];
    this.frame.hidden = !chart;
    if (!chart) return this.#end();
    const params = { topic: textOf(fields.topic), symbol: textOf(fields[`symbol${this.suffix}`]), step: stepName(chart.step_s) };
    const shown = JSON.stringify(params);
    if (shown !== this.shown) {
      this.#end();
      this.shown = shown;
      this.store = new CandleStore(chart.step_s);
      this.history = new CandleHistory(this.live, this.store, params, () => this.#draw());
    }
    this.loading = loading;
    const old = textOf(fields[`current${this.suffix}`]) === "no";
    this.look = { kind: chart.kind, unit: chart.unit, summary: chart.summary, old };
    const written = textOf(fields[`forming${this.suffix}`]);
    const forming = written ? written.split(",").map((each) => (each === "" ? null : Number(each))) : null;
    this.store.choose(chosen);
    if (this.suffix) this.store.put(chart, forming);
    else this.store.put({ ...chart, names: [...chart.names, ...charts.spread.names], values: [...chart.values, ...charts.spread.values] }, forming);
    this.#draw();
  }

  choose(chosen) {
    if (!this.store) return;
    this.store.choose(chosen);
    this.#draw();
  }

  // Older candles, if the chart comes near to its first one.
  want() {
    if (!this.store || this.loading || !this.chart?.shown) return;
    const { range } = this.chart;
    this.history.want(range);
    this.#begins(range);
  }

  #draw() {
    const shown = this.store.chart();
    this.chart ??= chartFor(this.id, { ...this.look, names: shown.names });
    this.chart.update({ ...this.look, ...shown });
  }

  #begins(range) {
    const { store, history } = this;
    const note = this.frame.querySelector("[data-begins]");
    const first_us = (store.first + Math.max(0, store.lines[3].findIndex((close) => close !== null))) * store.step_us;
    const atEnd = store.begins && range.from_us <= first_us + store.step_us;
    const text = history.problem || (atEnd ? `First candle ${fullClock(first_us)}: ${store.begins}.` : history.channel ? "Loading older candles" : "");
    note.hidden = !text;
    if (note.textContent !== text) note.textContent = text;
  }

  #end() {
    this.history?.close();
    this.history = this.store = null;
    this.shown = "";
  }
}

const STEPS = { 1: "1s", 60: "1m", 300: "5m", 900: "15m" };
const stepName = (step_s) => STEPS[step_s];
