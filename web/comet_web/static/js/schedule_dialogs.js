// The dialogs that make, change and move a schedule, and those of its other acts, at the revision that they show. A schedule
// that has only fired meanwhile has another revision, too: then an act goes on. After another client's change nothing is
// written, and the dialog says how the schedule is now.

import { call, texts } from "./acts.js";
import { api, Problem } from "./api.js";
import { base64Of, textOf } from "./bytes.js";
import { attempt, conditionOf, conflictRegion } from "./conflict.js";
import { field, open } from "./dialog.js";
import { el } from "./el.js";
import { formatted } from "./json_text.js";
import { NextTimes } from "./next_times.js";
import { pathOf, read } from "./schedule_api.js";
import { followKinds, recordFields, recordMembers } from "./record_form.js";
import { read as readSetting, nameProblem, write as writeSetting } from "./settings.js";
import { toast } from "./toast.js";
import { whole } from "./words.js";

const AGAIN_MAX = 5; // that a schedule may fire while one act is done
const EDITED_MAX = 256 << 10; // characters of a value
const ID = /^[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}$/;
const MS = { words: [], unit: "ms", unlimited: false, low: 1, high: Number.MAX_SAFE_INTEGER };
const TTL = { ...MS, unlimited: true };
const LATE = [
  ["", "as usual: the last one; of at: that one"], ["fire", "the first missed time fires, however late"],
  ["fire_last", "the last missed time fires, for all of them"], ["fire_all", "each missed time fires, the first 1,000"],
  ["skip", "times that are too late do not fire"],
];
// What changes when a schedule fires.
const FIRING = new Set(["revision", "next_us", "fired", "skipped", "fired_us", "tzdata"]);

// ---- a conflict

const settings = ({ schedule, source }) => JSON.stringify([Object.entries(schedule).filter(([name]) => !FIRING.has(name)), source]);

const revisionOf = (known) => (known ? known.schedule.revision : "absent");

// How a schedule is now, as the end of a sentence.
function stated({ schedule }) {
  const { spec, paused, reason, revision } = schedule;
  const state = paused ? (reason ? `paused: ${reason}` : "paused") : "active";
  return ["now it is ", el("code", {}, spec), `, ${state}, revision ${revision}.`];
}

// A schedule that a dialog shows, and its region for conflicts. `known`: as it was read, null: it did not exist.
class Shown {
  constructor(what, known) {
    this.what = what;
    this.known = known;
    this.region = conflictRegion();
  }

  // Runs `send(headers)` on the condition of the revision shown. `choices(now)`: what the dialog can do after a conflict.
  write(send, choices, { again = true } = {}) {
    return attempt(
      this.region,
      async () => {
        for (let left = again ? AGAIN_MAX : 0; ; left -= 1) {
          try {
            return await send(conditionOf(revisionOf(this.known)));
          } catch (error) {
            const now = left > 0 && error.code === "REVISION_MISMATCH" && this.known ? await read(this.what) : null;
            if (!now || settings(now) !== settings(this.known)) throw error;
            this.known = now; // it has fired
          }
        }
      },
      async () => {
        const now = await read(this.what);
        return { sentence: this.#sentence(now), choices: choices(now) };
      },
    );
  }

  #sentence(now) {
    if (!now) return "It was cancelled meanwhile, or has fired for the last time.";
    if (!this.known) return ["A schedule of this id exists: ", ...stated(now)];
    const fired = settings(now) === settings(this.known);
    return [fired ? "It has fired meanwhile: " : "It was changed meanwhile: ", ...stated(now)];
  }
}

// ---- pause, resume, run, cancel

const timeText = (us) => (us === null ? "not known" : `${new Date(Number(BigInt(us) / 1000n)).toISOString().replace("T", " ").replace(".000Z", "").replace("Z", "")} UTC`);

const ACTS = {
  pauseSchedule: { effect: ({ next_us }) => [["Does not fire", timeText(next_us)]], done: "paused" },
  resumeSchedule: { effect: ({ next_us }) => [["Fires next", timeText(next_us)]], done: "resumed" },
  runSchedule: { effect: ({ topic, fired }) => [["Writes to", topic], ["Records so far", whole(fired)]], done: "fires now", again: false },
  cancelSchedule: { effect: ({ next_us, fired }) => [["Does not fire", timeText(next_us)], ["Records so far", whole(fired)]], done: "cancelled" },
};

// Asks for confirmation with the effect, then acts. Resolves to the answer, or null.
export async function actOn(operation, what) {
  const known = await read(what);
  if (!known) throw gone(what);
  const { effect, done, again } = ACTS[operation];
  const shown = new Shown(what, known);
  const list = el("dl", { class: "facts effect" });
  const show = (now) => list.replaceChildren(...[["Times", now.spec], ...effect(now)].flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));
  const rehearse = async () => show((await call(operation, what, undefined, { dryRun: true })).schedule);
  const goOn = (now) => {
    shown.known = now;
    show(now.schedule);
  };
  const { title, note, action } = texts(operation, what);
  return open({
    title,
    content: [el("p", {}, note), list, shown.region],
    action,
    danger: operation === "cancelSchedule",
    dismiss: "Back",
    load: rehearse,
    submit: async () => {
      const choices = (now) => (now ? [[`Go on with revision ${now.schedule.revision}`, () => goOn(now)]] : []);
      const answer = await shown.write((headers) => call(operation, what, undefined, { headers }), choices, { again });
      toast(`Schedule ${what.schedule} ${done}.`);
      return answer;
    },
  });
}

const gone = ({ schedule }) => new Problem({ title: "No such schedule", detail: `${schedule} was cancelled, or has fired for the last time`, code: "SCHEDULE_NOT_FOUND" });

// ---- move

export async function moveSchedule(what) {
  const known = await read(what);
  if (!known) throw gone(what);
  const shown = new Shown(what, known);
  const times = new NextTimes({ value: known.schedule.spec });
  const { title, note, action } = texts("moveSchedule", what);
  const result = open({
    title,
    wide: true,
    content: [el("p", { class: "help" }, note), el("div", { class: "fields" }, times.node), shown.region],
    action,
    ready: () => times.ready,
    submit: async () => {
      const choices = (now) => (now ? [[`Go on with revision ${now.schedule.revision}`, () => (shown.known = now)]] : []);
      const answer = await shown.write((headers) => call("moveSchedule", what, { spec: times.text }, { headers }), choices);
      toast(`Schedule ${what.schedule} moved: ${answer.schedule.spec}.`);
      return answer;
    },
  });
  times.input.select();
  return result;
}

// ---- make and change

// The dialog for a new schedule, of `topic` if that is known. Resolves to the schedule, or null.
export const newSchedule = (topic = "") => edit({ topic, schedule: "" }, null);

export async function editSchedule(what) {
  const known = await read(what);
  if (!known) throw gone(what);
  return edit(what, known);
}

function edit(what, known) {
  const from = known ? valuesOf(known) : { key_kind: "none" };
  const shown = new Shown(what, known);
  const part = (name) => fields.find((each) => each.name === name);
  const times = new NextTimes({ value: from.spec ?? "", limits: () => limitsOf(part) });
  const fields = [...named(known ? null : what.topic), ...recordFields({ ...from, rows: 5 }, null), ...more(from)].map(field);
  const late = part("late").node.querySelector("select");
  const arrange = () => (part("late_max").node.hidden = late.value !== "skip");
  late.addEventListener("change", arrange);
  arrange();
  for (const name of ["end", "fires_max"]) part(name).node.addEventListener("input", () => times.limited());
  const rest = el("details", { open: Boolean(from.more) }, el("summary", {}, "Late times, jitter, end, lifetime"), el("div", { class: "fields columns" }, fields.filter((each) => MORE.has(each.name)).map(({ node }) => node)));
  rest.addEventListener("invalid", () => (rest.open = true), true);
  const first = fields.filter((each) => !MORE.has(each.name));
  const load = (now) => {
    shown.known = now;
    put(fields, valuesOf(now));
    times.set(now.schedule.spec);
    arrange();
  };
  const keep = (now) => () => (shown.known = now);
  const choices = (now) =>
    now
      ? [[`Load revision ${now.schedule.revision}`, () => load(now)], ["Go on with mine", keep(now)]]
      : [["Go on as a new schedule", keep(null)]];
  const result = open({
    title: known ? `Edit schedule ${what.schedule} of ${what.topic}` : "New schedule",
    wide: true,
    content: [
      known && el("p", { class: "help" }, "A changed schedule begins again: it counts its records from 1, and is active if it was paused."),
      el("div", { class: "fields columns" }, known ? [] : first.slice(0, 2).map(({ node }) => node), times.node, first.slice(known ? 0 : 2).map(({ node }) => node)),
      rest,
      shown.region,
    ],
    action: known ? "Save" : "Create",
    ready: () => times.ready,
    submit: async () => {
      const values = Object.fromEntries(fields.map((each) => [each.name, each.read()]));
      if (!known) shown.what = { topic: values.topic.trim(), schedule: values.id.trim() || part("id").made };
      const body = `{${membersOf(values, times.text).join(",")}}`;
      const answer = await shown.write((headers) => api("PUT", pathOf(shown.what), body, { headers }), choices);
      toast(`Schedule ${answer.schedule.id} ${answer.created ? "created" : "saved"}.`);
      return answer.schedule;
    },
  });
  if (!known) part("id").made = madeId(); // the same if it is sent again
  followKinds();
  (known ? times.input : part(what.topic ? "id" : "topic").node.querySelector("input")).focus();
  return result;
}

const PLAIN = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
const MORE = new Set(["late", "late_max", "jitter", "end", "fires_max", "ttl"]);

// The fields of topic and id, for a new schedule.
function named(topic) {
  if (topic === null) return [];
  return [
    { name: "topic", label: "Topic", required: true, maxlength: 249, value: topic, check: (text) => nameProblem(text.trim()), ...PLAIN },
    { name: "id", label: "Id", maxlength: 200, placeholder: "one is made", help: "Unique in the topic.", check: (text) => idProblem(text.trim()), ...PLAIN },
  ];
}

function more(from) {
  const duration = (rule) => (text) => (text.trim() ? readSetting(rule, text)[1] : "");
  return [
    { name: "late", label: "Late times, as after an outage", type: "select", options: LATE, value: from.late ?? "" },
    { name: "late_max", label: "Too late after", value: from.late_max ?? "", placeholder: "1 min", check: duration(MS), ...PLAIN },
    { name: "jitter", label: "Jitter up to", value: from.jitter ?? "", placeholder: "none", help: "Each time is later by up to that.", check: duration(MS), ...PLAIN },
    { name: "end", label: "No time after", value: from.end ?? "", placeholder: "2030-12-31T18:00Z", check: endProblem, ...PLAIN },
    { name: "fires_max", label: "Records at most", type: "number", min: 1, max: Number.MAX_SAFE_INTEGER, value: from.fires_max ?? "", placeholder: "no limit" },
    { name: "ttl", label: "Lifetime of its records", value: from.ttl ?? "", placeholder: "as the topic says", help: "A time, or none: they do not expire.", check: duration(TTL), ...PLAIN },
  ];
}

function idProblem(text) {
  return !text || ID.test(text) ? "" : "up to 200 letters, digits, '.', '_', ':' and '-', beginning with a letter, digit or '_'";
}

function endProblem(text) {
  return !text.trim() || endUs(text) !== null ? "" : "a time with its offset, e.g. 2030-12-31T18:00Z";
}

function endUs(text) {
  if (!/(?:Z|[+-]\d\d:\d\d)$/.test(text.trim())) return null;
  const fraction = /\.([0-9]{1,6})/.exec(text)?.[1] ?? "";
  const ms = Date.parse(text.trim().replace(/\.[0-9]+/, ""));
  return Number.isNaN(ms) ? null : BigInt(ms) * 1000n + BigInt(fraction.padEnd(6, "0"));
}

function limitsOf(part) {
  return { end_us: endUs(part("end")?.read() ?? ""), fires_max: Number(part("fires_max")?.read()) || null };
}

const madeId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// ---- a schedule as texts of the form, and back

function valuesOf({ schedule, record, bytes }) {
  const { key, key_base64, headers = [], partition = null, ttl_ms = null } = record;
  const text = bytes && textOf(bytes);
  if (bytes && bytes.length > EDITED_MAX) throw unfit(`its value has ${whole(bytes.length)} bytes`);
  if (headers.some(({ value }) => value === undefined || /\n|^\s|\s$/.test(value))) throw unfit("it has headers that do not fit into lines of text");
  const laid = text !== null && formatted(text);
  const end = schedule.end_us === "0" ? "" : isoOf(schedule.end_us);
  const duration = (value) => (value === null || value === "0" ? "" : writeSetting(TTL, value));
  return {
    spec: schedule.spec,
    ...(key_base64 !== undefined ? { key: key_base64, key_kind: "base64" } : { key: key ?? "", key_kind: key === undefined ? "none" : "text" }),
    ...(bytes === null ? { kind: "tombstone", value: "" } : text === null ? { kind: "base64", value: base64Of(bytes) } : laid ? { kind: "json", value: laid } : { kind: "text", value: text }),
    headers: headers.map(({ name, value }) => `${name}: ${value}`).join("\n"),
    partition: partition ?? "",
    late: schedule.late,
    late_max: duration(schedule.late_max_ms),
    jitter: duration(schedule.jitter_ms),
    end,
    fires_max: schedule.fires_max === "0" ? "" : schedule.fires_max,
    ttl: duration(ttl_ms),
    more: [schedule.late, end, ttl_ms].some(Boolean) || [schedule.jitter_ms, schedule.fires_max].some((each) => each !== "0"),
  };
}

const unfit = (why) => new Problem({ title: "This schedule cannot be edited here", detail: `${why}; it can be moved, or replaced by comet schedule add` });

function isoOf(us) {
  const time = BigInt(us);
  const rest = String(time % 1_000_000n).padStart(6, "0");
  const text = new Date(Number(time / 1_000_000n) * 1000).toISOString().replace(".000Z", "");
  return `${text}${rest === "000000" ? "" : `.${rest}`}Z`;
}

function put(fields, values) {
  for (const { name, node } of fields) {
    if (!(name in values)) continue;
    const input = node.querySelector("input, select, textarea");
    input.value = values[name];
    input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
  }
}

function membersOf(values, spec) {
  const duration = (name, rule = MS) => readSetting(rule, values[name])[0];
  const record = recordMembers(values);
  if (values.ttl.trim()) record.push(`"ttl_ms":${duration("ttl", TTL)}`);
  const members = [`"spec":${JSON.stringify(spec)}`, `"record":{${record.join(",")}}`];
  if (values.late) members.push(`"late":"${values.late}"`);
  if (values.late === "skip" && values.late_max.trim()) members.push(`"late_max_ms":${duration("late_max")}`);
  if (values.jitter.trim()) members.push(`"jitter_ms":${duration("jitter")}`);
  if (values.end.trim()) members.push(`"end_us":"${endUs(values.end)}"`);
  if (values.fires_max) members.push(`"fires_max":"${values.fires_max}"`);
  return members;
}
