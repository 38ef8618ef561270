// The live channel: one WebSocket for a tab. Keeps the document of the page up to date, and carries other channels.
//
//   document, "comet:document"  detail: the document, after every change; `fresh` on the event: it was asked for by
//                               navigate() or refresh(), and is to be shown as it is
//   document, "comet:live"      detail: {state, seconds}; state: connecting, live, reconnecting, stale, paused
//   document, "comet:problem"   detail: why the page cannot be kept up to date, or null: it is again

import { root } from "./el.js";
import { apply } from "./wire.js";

const RETRY_MS = 300;
const RETRY_GROWTH = 1.6;
const RETRY_MAX_MS = 30_000;
const MISSED_TICKS = 3;
const LATE_S_MIN = 2; // however often there are ticks: one that is late is no news
const LEAVING_MS = 10_000; // that the next page may take
const HIDDEN_MS = 5_000; // that a tab may be hidden before it stops to listen
const SILENT_MS = 20_000; // without a word on a page that has ticks: the connection leads nowhere, as after a sleep

class Live {
  constructor() {
    this.state = "connecting";
    this.document = null;
    this.interval_s = Number(document.documentElement.dataset.interval) || 0;
    this.paused = false;
    this.url = null;
    this.socket = null;
    this.page = null; // {id, seq, fresh}
    this.channels = new Map();
    this.next_id = 1;
    this.failures = 0;
    this.timer = 0;
    this.heard = performance.now(); // when the facts last moved on
    this.spoken = this.heard; // when the gateway last said anything
  }

  // ---- for pages

  // Shows the page at `url`, path and query without the root, from now on.
  watch(url, { fresh = true } = {}) {
    this.url = url;
    this.spoken = performance.now(); // there will be an answer
    this.#unwatch();
    this.page = { id: this.next_id++, seq: -1, fresh };
    if (!this.paused) this.#send({ id: this.page.id, watch: url });
    else this.resume();
  }

  // The page again, as it is now: after an act of one's own.
  refresh() {
    if (this.url !== null) this.watch(this.url);
  }

  // Another channel. `handler(event, problem)`: one of them is null. It is opened again whenever the connection was lost;
  // `params` may be a function that then says where to go on.
  open(kind, params, handler) {
    const id = this.next_id++;
    const channel = { id, kind, params, handler };
    this.channels.set(id, channel);
    this.#open(channel);
    return {
      send: (said) => this.#send({ id, say: said }),
      close: () => {
        if (this.channels.delete(id)) this.#send({ id, close: true });
      },
    };
  }

  pause() {
    this.paused = true;
    this.#unwatch();
    this.#judge();
  }

  resume() {
    this.paused = false;
    this.heard = performance.now();
    if (this.url !== null) this.watch(this.url, { fresh: false });
    this.#judge();
  }

  get connected() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  // ---- the connection

  start() {
    document.addEventListener("visibilitychange", () => this.#visible());
    addEventListener("pagehide", () => this.#drop());
    addEventListener("pageshow", (event) => event.persisted && this.#connect());
    addEventListener("online", () => this.#connect());
    setInterval(() => this.#look(), 500);
    this.#connect();
  }

  #connect() {
    clearTimeout(this.timer);
    if (this.socket || document.hidden) return;
    const address = new URL(`${root}/live`, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = (this.socket = new WebSocket(address));
    socket.addEventListener("open", () => {
      if (this.url !== null && !this.paused) this.watch(this.url, { fresh: this.page?.fresh ?? false });
      for (const channel of this.channels.values()) this.#open(channel);
      this.#judge();
    });
    socket.addEventListener("message", (event) => this.#hear(JSON.parse(event.data)));
    socket.addEventListener("close", () => this.#lost(socket));
  }

  #lost(socket) {
    if (this.socket !== socket) return;
    this.socket = null;
    const wait = Math.min(RETRY_MAX_MS, RETRY_MS * RETRY_GROWTH ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.#again(wait);
    this.#judge();
    loginIfOver();
  }

  #again(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#connect(), wait);
  }

  #drop() {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  #visible() {
    clearTimeout(this.timer);
    if (document.hidden) this.timer = setTimeout(() => this.#drop(), HIDDEN_MS);
    else {
      this.failures = 0;
      this.heard = this.socket ? this.heard : performance.now();
      this.#connect();
    }
  }

  #send(message) {
    if (this.connected) this.socket.send(JSON.stringify(message));
  }

  #open(channel) {
    const params = typeof channel.params === "function" ? channel.params() : channel.params;
    this.#send({ id: channel.id, open: channel.kind, params });
  }

  #unwatch() {
    if (this.page) this.#send({ id: this.page.id, unwatch: true }); // also of one that was not answered yet
    this.page = null;
  }

  // ---- what comes

  #hear(message) {
    this.spoken = performance.now();
    if (message.goaway !== undefined) {
      this.#drop();
      return this.#again(message.goaway);
    }
    const channel = this.channels.get(message.id);
    if (channel) return channel.handler(message.event ?? null, message.problem ?? null);
    if (message.id !== this.page?.id) return;
    this.failures = 0;
    if (message.problem) return tell("comet:problem", message.problem);
    if (message.document) this.#show(message.document, message);
    else if (message.seq === this.page.seq + 1) this.#show(apply(this.document, message.delta), message);
    else this.watch(this.url, { fresh: false }); // something is missing
  }

  #show(shown, { seq, interval_s }) {
    const { fresh } = this.page;
    this.page.seq = seq;
    this.page.fresh = false;
    this.interval_s = interval_s ?? this.interval_s;
    if (shown.time_us !== this.document?.time_us) this.heard = performance.now();
    this.document = shown;
    tell("comet:problem", null);
    tell("comet:document", shown, fresh);
    this.#judge();
  }

  #look() {
    const silent = this.connected && this.interval_s > 0 && !this.paused && performance.now() - this.spoken > SILENT_MS;
    if (silent) {
      this.#drop();
      this.#connect();
    }
    this.#judge();
  }

  // What may be said of the figures shown.
  #judge() {
    const seconds = (performance.now() - this.heard) / 1000;
    const late = this.interval_s > 0 && seconds > Math.max(LATE_S_MIN, MISSED_TICKS * this.interval_s + 0.25);
    const state = this.paused
      ? "paused"
      : late
        ? "stale"
        : this.connected
          ? this.document
            ? "live"
            : "connecting"
          : this.document
            ? "reconnecting"
            : "connecting";
    if (state === this.state && state !== "stale") return;
    this.state = state;
    tell("comet:live", { state, seconds: Math.floor(seconds) });
  }
}

// A session that is over leads to the login, and from there back to this page. While the gateway is away nothing is
// known; and a page that is being left, as by logging out, goes where it was sent.
async function loginIfOver() {
  if (!document.querySelector('meta[name="csrf"]')?.content) return;
  const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
  if (answer?.type === "opaqueredirect" && performance.now() - left > LEAVING_MS) location.reload();
}

let left = -Infinity;
addEventListener("beforeunload", () => {
  left = performance.now();
});

function tell(name, detail, fresh = false) {
  const event = new CustomEvent(name, { detail });
  event.fresh = fresh;
  document.dispatchEvent(event);
}

export const live = new Live();
