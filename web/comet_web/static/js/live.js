// The live connection: one WebSocket for a tab, `/v1/ws` as any other client has it. Subscribes to the page, updates its
// document, and carries channels.
//
//   document, "comet:document"  detail: the document, after every change; `fresh` on the event: requested by
//                               navigate() or refresh(), and to be shown at once
//   document, "comet:live"      detail: {state, seconds}; state: connecting, live, reconnecting, stale, paused
//   document, "comet:problem"   detail: why the page cannot be updated, or null: it is updated again

import { root } from "./el.js";
import { apply } from "./wire.js";

const RETRY_MS = 300;
const RETRY_GROWTH = 1.6;
const RETRY_MAX_MS = 30_000;
const MISSED_TICKS = 3;
const LATE_S_MIN = 2; // a single late tick does not count
const LEAVING_MS = 10_000; // to load the next page
const HIDDEN_MS = 5_000; // until a hidden tab disconnects
const SILENT_MS = 20_000; // without any frame on a page with ticks: the connection is dead, as after a sleep

class Live {
  constructor() {
    this.state = "connecting";
    this.document = null;
    this.interval_s = Number(document.documentElement.dataset.interval) || 0;
    this.paused = false;
    this.url = null;
    this.socket = null;
    this.page = null; // {id, seq, fresh}
    this.request_id = null; // of the connection
    this.channels = new Map();
    this.stays = false; // connected while the tab is hidden
    this.next_id = 1;
    this.failures = 0;
    this.timer = 0;
    this.heard = performance.now(); // when the facts last changed
    this.spoken = this.heard; // when the gateway last sent a frame
  }

  // ---- for pages

  // Watches the page at `url`, path and query without the root.
  watch(url, { fresh = true } = {}) {
    this.url = url;
    this.spoken = performance.now(); // an answer will come
    this.#unwatch();
    this.page = { id: this.#newId(), seq: -1, fresh };
    if (!this.paused) this.#send({ type: "subscribe", id: this.page.id, page: url });
    else this.resume();
  }

  // Loads the page again, after the user's own change.
  refresh() {
    if (this.url !== null) this.watch(this.url);
  }

  // Opens a channel. `handler(event, problem)`: one of them is null. It is reopened after a lost connection; `params` may
  // be a function that gives the position to resume from.
  open(kind, params, handler) {
    const id = this.#newId();
    const channel = { id, kind, params, handler };
    this.channels.set(id, channel);
    this.#open(channel);
    return {
      send: (params) => this.#send({ type: "control", id, params }),
      close: () => {
        if (this.channels.delete(id)) this.#send({ type: "unsubscribe", id });
      },
    };
  }

  // Keeps the connection while the tab is hidden, for channels alone: a hidden page is not updated.
  stay(yes) {
    this.stays = yes;
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
    setInterval(() => this.#check(), 500);
    this.#connect();
  }

  #connect() {
    clearTimeout(this.timer);
    if (this.socket || (document.hidden && !this.stays)) return;
    const address = new URL(`${root}/v1/ws`, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = (this.socket = new WebSocket(address, "comet.v1"));
    socket.addEventListener("open", () => {
      this.#send({ type: "ping" }); // a paused tab subscribes to nothing, and the gateway waits for a first frame
      const fresh = this.page?.fresh ?? false;
      this.page = null; // it was of the connection before
      if (this.url !== null && !this.paused && !document.hidden) this.watch(this.url, { fresh });
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
    if (document.hidden) this.timer = setTimeout(() => (this.stays ? this.#unwatch() : this.#drop()), HIDDEN_MS);
    else {
      this.failures = 0;
      this.heard = this.socket && this.page ? this.heard : performance.now();
      if (this.connected && !this.page && this.url !== null && !this.paused) this.watch(this.url, { fresh: false });
      this.#connect();
    }
  }

  #newId() {
    return String(this.next_id++);
  }

  #send(frame) {
    if (this.connected) this.socket.send(JSON.stringify(frame));
  }

  #open(channel) {
    const params = typeof channel.params === "function" ? channel.params() : channel.params;
    this.#send({ type: "subscribe", id: channel.id, channel: channel.kind, params });
  }

  #unwatch() {
    if (this.page) this.#send({ type: "unsubscribe", id: this.page.id }); // also before the first answer
    this.page = null;
  }

  // ---- incoming frames

  #hear(frame) {
    this.spoken = performance.now();
    if (frame.type === "welcome") this.request_id = frame.request_id;
    else if (frame.type === "goaway") {
      this.#drop();
      this.#again(frame.reconnect_ms);
    } else if (this.channels.has(frame.id)) this.#hearChannel(this.channels.get(frame.id), frame);
    else if (frame.id === this.page?.id) this.#hearPage(frame);
  }

  #hearChannel({ handler }, { type, event, problem }) {
    if (type === "event") handler(event, null);
    else if (type === "error") handler(null, this.#named(problem));
  }

  #hearPage(frame) {
    this.failures = 0;
    if (frame.type === "error") dispatch("comet:problem", this.#named(frame.problem));
    else if (frame.type === "page") this.#show(frame.document, frame);
    else if (frame.type === "delta") {
      if (frame.seq === this.page.seq + 1) this.#show(apply(this.document, frame.delta), frame);
      else this.watch(this.url, { fresh: false }); // a delta is missing
    }
  }

  // A problem with the id by which the gateway's log has the connection.
  #named(problem) {
    return { request_id: this.request_id, ...problem };
  }

  #show(shown, { seq, interval_s }) {
    const { fresh } = this.page;
    this.page.seq = seq;
    this.page.fresh = false;
    this.interval_s = interval_s ?? this.interval_s;
    if (shown.time_us !== this.document?.time_us) this.heard = performance.now();
    this.document = shown;
    dispatch("comet:problem", null);
    dispatch("comet:document", shown, fresh);
    this.#judge();
  }

  #check() {
    const silent = this.connected && this.page && this.interval_s > 0 && !this.paused && performance.now() - this.spoken > SILENT_MS;
    if (silent) {
      this.#drop();
      this.#connect();
    }
    this.#judge();
  }

  // Sets the state of the figures shown.
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
    dispatch("comet:live", { state, seconds: Math.floor(seconds) });
  }
}

// An expired session leads to the login, and from there back to this page. Does nothing while the gateway is down or the
// page is being left, as by logging out.
async function loginIfOver() {
  if (!document.querySelector('meta[name="csrf"]')?.content) return;
  const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
  if (answer?.type === "opaqueredirect" && performance.now() - left > LEAVING_MS) location.reload();
}

let left = -Infinity;
addEventListener("beforeunload", () => {
  left = performance.now();
});

function dispatch(name, detail, fresh = false) {
  const event = new CustomEvent(name, { detail });
  event.fresh = fresh;
  document.dispatchEvent(event);
}

export const live = new Live();
