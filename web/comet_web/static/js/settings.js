// Settings of topics: their rules and defaults as the cluster tells them, and parsing and writing of values.

import { api } from "./api.js";

// A Map of name -> rule {name, label, about, unit, words, low, high, unlimited, default, default_replicated}, and the
// default number of replicas.
export async function topicSettings() {
  const { items, replicas } = await api("GET", "/v1/topic-settings");
  return { rules: new Map(items.map((each) => [each.name, each])), replicas };
}

// A valid topic name.
export const NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,248}$/;

const STEPS = {
  ms: { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 },
  bytes: {
    B: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
    KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40,
  },
};
const WRITTEN = { ms: ["d", "h", "min", "s", "ms"], bytes: ["GiB", "MiB", "KiB", "B"] };
const EXAMPLES = { ms: "30 s, 12 h, 7 d", bytes: "64 KiB, 1.5 GB" };

// [value, ""] of a text, or [null, what is wrong with it].
export function read(rule, text) {
  const written = text.trim();
  if (rule.words.length) return rule.words.includes(written) ? [written, ""] : [null, `one of ${rule.words.join(", ")}`];
  if (rule.unlimited && /^(none|unlimited|forever|-1)$/i.test(written)) return [-1, ""];
  const found = /^([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)$/.exec(written);
  const steps = STEPS[rule.unit] ?? {};
  const step = found && (found[2] ? steps[found[2]] : 1);
  if (!step) return [null, `write e.g. ${EXAMPLES[rule.unit] ?? "1000"}${rule.unlimited ? ", or none" : ""}`];
  const value = Math.round(Number(found[1].replace(/[_,]/g, "")) * step);
  const low = rule.unlimited ? 0 : Number(rule.low);
  if (!(value >= low && value <= Number(rule.high))) return [null, `from ${write(rule, low)} to ${write(rule, rule.high)}`];
  return [value, ""];
}

// A value as `read` parses it: in the largest unit without a fraction.
export function write(rule, value) {
  if (rule.words.length) return String(value);
  const number = Number(value);
  if (rule.unlimited && number === -1) return "none";
  const units = WRITTEN[rule.unit];
  if (!units) return String(number);
  const unit = units.find((each) => number && number % STEPS[rule.unit][each] === 0) ?? units.at(-1);
  return `${number / STEPS[rule.unit][unit]} ${unit}`;
}

// The default of a new topic, as text.
export function usual(rule) {
  const more = rule.default_replicated === null ? "" : `; ${write(rule, rule.default_replicated)} with 3 or more replicas`;
  return `default: ${write(rule, rule.default)}${more}`;
}

// What is wrong with a topic name, or "".
export function nameProblem(name, taken = () => false) {
  if (!name) return "";
  if (name.length > 249) return `at most 249 characters, not ${name.length}`;
  if (/^[.-]/.test(name)) return "must begin with a letter, digit or _";
  if (!NAME.test(name)) return "letters, digits, '.', '_' and '-' only";
  return taken(name) ? "a topic of this name exists" : "";
}
