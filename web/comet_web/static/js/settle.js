// Redrives or discards dead letters: a dry run first, then a run at a limited rate, with progress and Stop.

import { api } from "./api.js";
import { field } from "./dialog.js";
import { el } from "./el.js";
import { lines } from "./ndjson.js";
import { rehearse } from "./rehearse.js";
import { toast } from "./toast.js";
import { many, whole } from "./words.js";

const FAILURES_MAX = 10;
const RATE = 100;
const ADDED = /^comet-(dead-letter|redriven)-/; // headers that Comet added

const at = (topic, act) => `/v1/dead-letters/${encodeURIComponent(topic)}/${act}`;

let running = null; // the current run; a page has at most one

// Each resolves to whether it was started; the page shows its progress, and "comet:settled" marks its end.
// `chosen`: {dead_letters: [{partition, offset}]} or {filter: {…}}; `about` describes the selection.
export function redrive(topic, chosen, about) {
  return settle(topic, "redrive", chosen, about, [
    field({ name: "to", label: "To", placeholder: "source topic of each", autocomplete: "off", spellcheck: "false", help: "Empty: each goes back to its source topic." }),
  ]);
}

export function discard(topic, chosen, about) {
  return settle(topic, "discard", chosen, about, []);
}

async function settle(topic, act, chosen, about, more) {
  if (running) return void toast("Another run is in progress. Wait for it or stop it.", "warn");
  const redriving = act === "redrive";
  const one = chosen.dead_letters?.length === 1;
  const body = ({ to = "", rate = RATE }) => ({ ...chosen, rate: Number(rate), ...(to.trim() ? { to: to.trim() } : {}) });
  const values = await rehearse({
    title: redriving ? "Redrive dead letters" : "Discard dead letters",
    note: redriving
      ? `${about}. Each is written once, as a new record with its origin in headers.`
      : `${about}. They are marked as discarded and stay in the log; no handler gets them again.`,
    action: redriving ? "Redrive" : "Discard",
    danger: !redriving,
    wide: false,
    fields: one ? more : [...more, field({ name: "rate", label: "Dead letters per second, at most", type: "number", min: 1, max: 10000, required: true, value: RATE })],
    plan: (given) => (one || Number(given.rate) > 0 ? api("POST", at(topic, `${act}?dry_run=true`), body(given)) : null),
    show: effect,
    does: (plan) => plan.dead_letters > 0 && plan.targets.every((target) => target.exists),
    submit: async (given) => given,
  });
  if (values) run(topic, act, body(values));
  return values !== null;
}

// The result of a dry run.
function effect(plan) {
  const rows = [["Dead letters", whole(plan.dead_letters)]];
  if (plan.settled) rows.push(["Already redriven or discarded", `${whole(plan.settled)}, skipped`]);
  if (plan.unknown.length) rows.push(["No longer in the log", whole(plan.unknown.length)]);
  for (const target of plan.targets) {
    rows.push([`To ${target.topic}`, target.exists ? many(target.dead_letters, "record") : "topic does not exist; choose another one"]);
    if (target.exists) rows.push(["Read by groups", target.groups.length ? target.groups.join(", ") : "none"]);
  }
  if (plan.dead_letters > 1) rows.push(["Duration", plan.seconds < 1 ? "less than a second" : `at least ${seconds(plan.seconds)}`]);
  return el("dl", { class: "facts effect" }, rows.map(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));
}

function seconds(value) {
  return value < 120 ? many(Math.ceil(value), "second") : many(Math.ceil(value / 60), "minute");
}

// ---- edit one

export async function edit(topic, id) {
  const found = await api("GET", `/v1/topics/${encodeURIComponent(topic)}/partitions/${id.partition}/records?offset=${id.offset}&limit=1&values=text`);
  const record = found.records.find((one) => one.offset === id.offset);
  if (!record) return void toast(`Dead letter ${id.partition} / ${id.offset} is no longer in the log.`, "warn");
  const before = { value: record.text ?? record.base64 ?? "", key: record.key ?? record.key_base64 ?? "", headers: written(record.headers ?? []) };
  const binary = { value: "base64" in record, key: "key_base64" in record };
  const changed = (given) => {
    const made = {};
    if (given.value !== before.value) made[binary.value ? "base64" : "text"] = given.value;
    if (given.key !== before.key) made[binary.key ? "key_base64" : "key"] = given.key;
    if (given.headers !== before.headers) made.headers = read(given.headers);
    return made;
  };
  const body = (given) => {
    const made = changed(given);
    return { dead_letters: [id], ...(Object.keys(made).length ? { record: made } : {}), ...(given.to.trim() ? { to: given.to.trim() } : {}) };
  };
  const values = await rehearse({
    title: `Edit and redrive dead letter ${id.partition} / ${id.offset}`,
    note: "Changes apply to the new record; the dead letter itself stays unchanged.",
    action: "Redrive",
    fields: [
      field({ name: "value", label: binary.value ? "Value, as base64" : "Value", type: "textarea", rows: 5, value: before.value, help: record.tombstone ? "No value: leave empty to write a tombstone." : "" }),
      field({ name: "key", label: binary.key ? "Key, as base64" : "Key", value: before.key, autocomplete: "off", spellcheck: "false", help: "A different key may map to a different partition." }),
      field({ name: "headers", label: "Headers", type: "textarea", rows: 3, value: before.headers, help: "name: value, one per line; bytes as name: base64:AA==" }),
      field({ name: "to", label: "To", placeholder: "source topic", autocomplete: "off", spellcheck: "false" }),
    ],
    plan: (given) => api("POST", at(topic, "redrive?dry_run=true"), body(given)),
    show: effect,
    does: (plan) => plan.dead_letters > 0 && plan.targets.every((target) => target.exists),
    submit: async (given) => given,
  });
  if (values) run(topic, "redrive", body(values));
  return values !== null;
}

function written(headers) {
  return headers
    .filter((one) => !ADDED.test(one.name))
    .map((one) => `${one.name}: ${"base64" in one ? `base64:${one.base64}` : one.value}`)
    .join("\n");
}

function read(text) {
  const rows = text.split("\n").filter((line) => line.trim());
  return rows.map((line) => {
    const colon = line.indexOf(":");
    const [name, value] = colon < 0 ? [line.trim(), ""] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
    return value.startsWith("base64:") ? { name, base64: value.slice(7) } : { name, value };
  });
}

// ---- the run

async function run(topic, act, body) {
  const [done, verb] = act === "redrive" ? ["redriven", "Redriving"] : ["discarded", "Discarding"];
  const shown = document.querySelector("[data-run]");
  const [bar, text, stop, failures] = ["bar", "text", "stop", "failures"].map((name) => shown.querySelector(`[data-run-${name}]`));
  running = new AbortController();
  const halt = () => running?.abort();
  stop.addEventListener("click", halt);
  addEventListener("beforeunload", stay);
  failures.replaceChildren();
  stop.hidden = false;
  bar.removeAttribute("value");
  text.textContent = `${verb} …`;
  shown.hidden = false;
  shown.scrollIntoView({ block: "nearest" });
  let last = { dead_letters: 0, done: 0, already: 0, failed: 0 };
  let end = null;
  try {
    for await (const line of lines("POST", at(topic, act), body, running.signal)) {
      if (line.failure) fail(failures, line.failure);
      last = line.end ?? line.progress ?? last;
      end = line.end ?? end;
      const tried = last.done + last.already + last.failed;
      bar.max = Math.max(1, last.dead_letters);
      bar.value = tried;
      text.textContent = `${verb}: ${whole(tried)} of ${whole(last.dead_letters)}${counts(last)}`;
    }
    finish(text, end, last, done);
  } catch (error) {
    if (error.name === "AbortError") {
      text.textContent = `Stopped: ${many(last.done, "dead letter")} ${done}${counts(last)}. The others stay pending.`;
      toast(`Stopped. ${many(last.done, "dead letter")} ${done}; a few more may have been in progress.`, "warn");
    } else {
      text.textContent = [error.title, error.detail, error.request_id && `request ${error.request_id}`].filter(Boolean).join(" · ");
      toast(text.textContent, "bad");
    }
  } finally {
    running = null;
    stop.hidden = true;
    stop.removeEventListener("click", halt);
    removeEventListener("beforeunload", stay);
    document.dispatchEvent(new CustomEvent("comet:settled"));
  }
}

function finish(text, end, last, done) {
  const summary = `${many(last.done, "dead letter")} ${done}${counts(last)}`;
  if (!end || end.problem || end.stopped) {
    const why = end?.problem ? `${end.problem.title}: ${end.problem.detail}` : "the response ended early";
    text.textContent = `Ended early: ${why}. ${summary}. The others stay pending.`;
    return void toast(text.textContent, "bad");
  }
  text.textContent = `Done: ${summary}.`;
  toast(`${summary}.`, last.failed ? "warn" : "good");
}

function counts({ already, failed }) {
  return `${already ? `, ${whole(already)} already done` : ""}${failed ? `, ${whole(failed)} failed` : ""}`;
}

function fail(list, { partition, offset, problem }) {
  if (list.childElementCount < FAILURES_MAX) {
    list.append(el("li", { dataset: { tone: "bad" } }, `${partition} / ${offset}: ${problem.title}: ${problem.detail}`));
  }
}

// Leaving the page stops the run.
function stay(event) {
  event.preventDefault();
}
