// Older candles of one chart, in pages, as they come into sight. A page that is not wanted any more is cancelled.

const PAGE = 300; // candles
const AGAIN_MS = 5_000; // after an error

export class CandleHistory {
  // `changed` is called after each page and error.
  constructor(live, store, params, changed) {
    this.live = live;
    this.store = store;
    this.params = params; // topic, symbol, step
    this.changed = changed;
    this.channel = null;
    this.problem = "";
    this.pages = 0;
    this.again = -Infinity;
  }

  // Loads a page if a chart that shows `range` comes near to what is known.
  want(range) {
    const { store } = this;
    if (this.channel || store.begins || store.reached === null || performance.now() < this.again) return;
    if (range.from_us - (range.to_us - range.from_us) / 2 > store.reached * store.step_us) return;
    const params = { ...this.params, before_us: String(store.reached * store.step_us), count: String(PAGE) };
    this.channel = this.live.open("candles", params, (page, problem) => this.#take(page, problem));
  }

  close() {
    this.channel?.close();
    this.channel = null;
  }

  #take(page, problem) {
    this.close();
    this.problem = problem ? `Older candles cannot be loaded: ${problem.detail ?? problem.title}` : "";
    if (problem) this.again = performance.now() + AGAIN_MS;
    else {
      this.pages += 1;
      this.store.putBefore(page);
    }
    this.changed();
  }
}
