// The field of a schedule's times in a dialog. While one types, the gateway computes the next ten times, which stand below
// it before anything is saved, or what is wrong with the text, and where.

import { api, Problem } from "./api.js";
import { field } from "./dialog.js";
import { el } from "./el.js";
import { many } from "./words.js";

const TYPING_MS = 300;
const SHOWN = 10;
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const EXAMPLES = [
  ["every 15m", "each quarter of an hour"],
  ["cron 30 9 * * 1-5 America/New_York", "on weekdays at 09:30 there"],
  ["calendar:XNYS open-5m", "five minutes before the exchange opens"],
  ["at 2030-12-01T09:30 Europe/London", "once"],
];

export class NextTimes {
  // `limits()` says where the times end: {end_us, fires_max}, null for none.
  constructor({ value = "", limits = () => ({ end_us: null, fires_max: null }) } = {}) {
    this.limits = limits;
    this.field = field({
      name: "spec", label: "Times", required: true, value, maxlength: 1000, placeholder: EXAMPLES[1][0],
      autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    });
    this.input = this.field.node.querySelector("input");
    this.problem = el("div", { class: "problem", id: `${this.input.id}-problem`, role: "status" });
    this.said = el("p", { class: "sr", role: "status" }); // the table in short, for screen readers
    this.list = el("div", { class: "next-times" });
    this.field.node.classList.add("whole");
    this.field.node.append(this.problem, this.said, this.list);
    this.input.setAttribute("aria-describedby", this.problem.id);
    this.known = null; // {text, found} of the last answer, {text, problem} of an error
    this.request = null; // an AbortController
    this.timer = 0;
    this.input.addEventListener("input", () => this.#typed());
    this.#typed(0);
  }

  get node() {
    return this.field.node;
  }

  get text() {
    return this.input.value.trim();
  }

  // Whether the times of the text as it is now are shown.
  get ready() {
    return this.known?.found !== undefined && this.known.text === this.text;
  }

  set(value) {
    this.input.value = value;
    this.#typed(0);
  }

  // Shows the known times again, after other limits.
  limited() {
    if (this.ready) this.#show(this.known.found);
  }

  #typed(wait = TYPING_MS) {
    clearTimeout(this.timer);
    this.request?.abort();
    if (this.text === this.known?.text) return this.#settled();
    if (!this.text) return this.#examples();
    this.list.setAttribute("aria-busy", "true");
    this.timer = setTimeout(() => this.#ask(this.text), wait);
  }

  async #ask(text) {
    const request = (this.request = new AbortController());
    const query = new URLSearchParams({ spec: text, count: SHOWN });
    try {
      const found = await api("GET", `/v1/schedules/next?${query}`, undefined, { signal: request.signal });
      this.known = { text, found };
      this.#right();
      this.#show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      this.known = error.status === 400 || error.status === 404 || error.status === 422 ? { text, problem: error } : null; // else it may be right
      this.#wrong(error);
    }
    this.#settled();
  }

  // The action of the dialog is enabled or disabled by what is known now.
  #settled() {
    this.list.removeAttribute("aria-busy");
    this.list.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #examples() {
    this.known = null;
    this.#right();
    const rows = EXAMPLES.map(([text, about]) => [
      el("dt", {}, el("button", { type: "button", class: "plain", onclick: () => this.#take(text) }, el("code", {}, text))),
      el("dd", {}, about),
    ]);
    this.list.replaceChildren(el("dl", { class: "examples" }, rows));
    this.#settled();
  }

  #take(text) {
    this.set(text);
    this.input.focus();
  }

  #right() {
    this.problem.replaceChildren();
    this.input.removeAttribute("aria-invalid");
  }

  // Says what is wrong at the field, with the part of the text where it is.
  #wrong({ code, title, detail, hint, found }) {
    const advice = code === "CALENDAR_NOT_FOUND" ? "add it with comet calendar import, or put" : hint;
    this.input.setAttribute("aria-invalid", "true");
    const at = /^[0-9]+$/.test(found.position ?? "") ? Number(found.position) : null;
    this.problem.replaceChildren(
      el("span", {}, [detail || title, advice].filter(Boolean).join(" · ")),
      ...(at === null ? [] : [el("code", { class: "excerpt" }, excerpt(this.text, at))]),
    );
    this.list.replaceChildren();
  }

  #show(found) {
    const { times, end } = limited(found, this.limits());
    const rows = times.map(({ time_us, utc, local }) =>
      el("tr", {}, el("td", {}, wall(local)), el("td", { class: "w" }, plain(utc)), el("td", { class: "w" }, here(time_us))),
    );
    const heads = [found.zone, "UTC", "Here"].map((name, at) => el("th", { scope: "col", class: at ? "w" : null }, name));
    this.said.textContent = rows.length ? `${many(rows.length, "time")}, the first ${wall(times[0].local)}` : "No next time";
    const table = el("table", {}, el("caption", {}, "Next times of ", el("code", {}, found.schedule)), el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
    this.list.replaceChildren(
      ...[
        rows.length ? table : null,
        end && el("p", { class: "hint" }, rows.length ? `No more times: ${end}.` : `No next time: ${end}.`),
        found.warning && el("p", { class: "notice", dataset: { tone: "warn" } }, found.warning),
      ].filter(Boolean),
    );
  }
}

// The times up to the end of the schedule, and why no more follow.
function limited({ times, end }, { end_us, fires_max }) {
  let shown = times;
  let why = end;
  if (end_us !== null) {
    shown = shown.filter(({ time_us }) => BigInt(time_us) <= end_us);
    if (shown.length < times.length) why = "it ends then";
  }
  if (fires_max !== null && fires_max <= shown.length) {
    shown = shown.slice(0, fires_max);
    why = `it ends after ${many(fires_max, "record")}`;
  }
  return { times: shown, end: why };
}

// The text with the word marked that begins at a character, counted as Python does.
function excerpt(text, at) {
  const letters = [...text];
  let end = at;
  while (end < letters.length && letters[end] !== " ") end += 1;
  const part = (from, to) => letters.slice(from, to).join("");
  return [part(0, at), el("mark", {}, part(at, end) || "▏"), part(end)];
}

// 2026-11-27T13:00:00-05:00 as Fri 2026-11-27 13:00:00 -05:00.
export function wall(iso) {
  const [day, rest] = iso.split("T");
  const [, clock, offset] = /^([0-9:.]+)(.*)$/.exec(rest);
  return `${DAYS[new Date(`${day}T00:00Z`).getUTCDay()]} ${day} ${clock} ${offset}`;
}

const plain = (iso) => iso.replace("T", " ").replace(/\+00:00$/, "");
const here = (time_us) => new Date(Number(BigInt(time_us) / 1000n)).toLocaleString("sv");
