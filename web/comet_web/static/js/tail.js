// The live tail of a topic: newest on top, at most ROWS_MAX rows, at the gateway's pace. Scrolling away or selecting text
// pauses it; new records are counted meanwhile.

import { icon } from "./el.js";
import { say } from "./toast.js";

export const ROWS_MAX = 1_000;
const SUMMARY_MS = 5_000; // between two summaries for screen readers
const WORDS = { connecting: "Connecting", live: "Live", paused: "Paused", lost: "Reconnecting" };

export class Tail {
  constructor(section, rows, live, params) {
    this.section = section;
    this.rows = rows;
    this.paused = false;
    this.withPage = false; // paused because the page is
    this.matched = 0; // of this channel
    this.before = 0; // matched at the pause
    this.unannounced = 0;
    this.part = (name) => section.querySelector(`[data-tail${name}]`);
    this.channel = live.open("tail", () => this.#begin(params), (event, problem) => this.#hear(event, problem));
    this.part("-pause").addEventListener("click", () => this.pause(!this.paused));
    this.part("-new").addEventListener("click", () => this.pause(false));
    document.addEventListener("selectionchange", () => this.#marked());
    addEventListener("scroll", () => this.#scrolled(), { passive: true });
    document.addEventListener("comet:live", ({ detail }) => this.#connection(detail.state));
    setInterval(() => this.#summary(), SUMMARY_MS);
  }

  pause(yes) {
    if (this.paused === yes) return;
    this.paused = yes;
    this.before = this.matched;
    this.channel.send({ rows: !yes });
    const button = this.part("-pause");
    button.setAttribute("aria-pressed", String(yes));
    button.replaceChildren(icon(yes ? "play" : "pause"), yes ? "Resume" : "Pause");
    this.part("-new").hidden = true;
    this.#state(yes ? "paused" : "live");
    if (!yes) this.#toTop();
  }

  #begin(params) {
    this.matched = this.before = 0; // the gateway restarts its counts
    return params;
  }

  #hear(event, problem) {
    if (problem) return this.#failed(problem);
    const fresh = event.matched - this.matched;
    this.matched = event.matched;
    this.unannounced += fresh;
    this.part("-summary").textContent = event.text;
    if (this.paused) return this.#count();
    this.#state("live");
    if (event.rows.length) this.rows.prepend(event.rows);
  }

  #count() {
    const fresh = this.matched - this.before;
    const button = this.part("-new");
    button.hidden = fresh <= 0;
    button.textContent = `${fresh.toLocaleString("en")} new · resume`;
  }

  #failed(problem) {
    this.#state("lost");
    this.part("-text").textContent = "Ended";
    const wrong = document.querySelector("[data-wrong]");
    wrong.textContent = [problem.title, problem.detail].filter(Boolean).join(": ");
    wrong.hidden = false;
  }

  #state(name) {
    const shown = this.part("");
    if (shown.dataset.state === name) return;
    shown.dataset.state = name;
    this.part("-text").textContent = WORDS[name];
  }

  // A pause by the page ends with the page's.
  #connection(state) {
    if (state === "paused") {
      this.withPage = !this.paused;
      return this.pause(true);
    }
    if (this.withPage) this.pause(false);
    this.withPage = false;
    if (state === "reconnecting") this.#state("lost");
  }

  #marked() {
    const marked = getSelection();
    if (!marked.isCollapsed && this.rows.body.contains(marked.anchorNode)) this.pause(true);
  }

  // The newest row is out of sight: the visible rows should not move.
  #scrolled() {
    if (!this.paused && this.rows.count && this.rows.body.getBoundingClientRect().top < 0) this.pause(true);
  }

  #toTop() {
    const top = this.section.getBoundingClientRect().top;
    if (top < 0) scrollBy(0, top - 64);
  }

  #summary() {
    if (this.unannounced > 0 && !document.hidden) {
      say(`${this.unannounced.toLocaleString("en")} new ${this.unannounced === 1 ? "record" : "records"}${this.paused ? ", paused" : ""}`);
    }
    this.unannounced = 0;
  }
}
