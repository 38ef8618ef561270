// Settings of a topic: their rules, and parsing and writing of values. The table is JSON: a test compares it with the
// rules of the SDK.

export const SETTINGS = {
  "retention_ms": { "default": 604800000, "unit": "ms", "low": -1, "high": 9007199254740992, "none": true, "label": "Retention time" },
  "retention_bytes": { "default": -1, "unit": "bytes", "low": -1, "high": 9007199254740992, "none": true, "label": "Retention size per partition" },
  "retention_records": { "default": -1, "unit": "", "low": -1, "high": 9007199254740992, "none": true, "label": "Retained records per partition" },
  "flush": { "default": "interval", "options": ["always", "interval", "os"], "label": "Flush to disk" },
  "flush_interval_ms": { "default": 50, "unit": "ms", "low": 1, "high": 60000, "label": "Flush interval", "number": true },
  "record_bytes_max": { "default": 1048576, "unit": "bytes", "low": 1, "high": 7340032, "label": "Largest record", "number": true },
  "segment_bytes": { "default": 134217728, "unit": "bytes", "low": 65536, "high": 1073741824, "label": "Segment size" },
  "segment_ms": { "default": 86400000, "unit": "ms", "low": 100, "high": 316224000000, "label": "Segment age" },
  "min_insync": { "default": 1, "unit": "", "low": 1, "high": 15, "label": "Minimum in-sync replicas", "number": true },
  "consistency": { "default": "consistent", "options": ["consistent", "available"], "label": "Consistency" }
};

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
const EXAMPLES = { ms: "30 s, 12 h, 7 d", bytes: "64 KiB, 1.5 GB", "": "1000" };

export function setting(name) {
  return SETTINGS[name] ?? { unit: "", low: 0, high: Number.MAX_SAFE_INTEGER, label: name };
}

// [value, ""] of a text, or [null, what is wrong with it].
export function read(name, text) {
  const rule = setting(name);
  const written = text.trim();
  if (rule.options) return rule.options.includes(written) ? [written, ""] : [null, `one of ${rule.options.join(", ")}`];
  if (rule.none && /^(none|unlimited|forever|-1)$/i.test(written)) return [-1, ""];
  const found = /^([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)$/.exec(written);
  const steps = STEPS[rule.unit] ?? {};
  const step = found && (found[2] ? steps[found[2]] : 1);
  if (!step) return [null, `write e.g. ${EXAMPLES[rule.unit]}${rule.none ? ", or none" : ""}`];
  const value = Math.round(Number(found[1].replace(/[_,]/g, "")) * step);
  const low = rule.none ? 0 : rule.low;
  if (!(value >= low && value <= rule.high)) return [null, `from ${write(name, low)} to ${write(name, rule.high)}`];
  return [value, ""];
}

// A value as `read` parses it: in the largest unit without a fraction.
export function write(name, value) {
  const rule = setting(name);
  if (rule.options) return String(value);
  const number = Number(value);
  if (rule.none && number === -1) return "none";
  const units = WRITTEN[rule.unit];
  if (!units) return String(number);
  const unit = units.find((each) => number && number % STEPS[rule.unit][each] === 0) ?? units.at(-1);
  return `${number / STEPS[rule.unit][unit]} ${unit}`;
}

// A value for the API: 64-bit numbers are strings there.
export function sent(name, value) {
  const rule = setting(name);
  return rule.options || rule.number ? value : String(value);
}

// What is wrong with a topic name, or "".
export function nameProblem(name, taken = () => false) {
  if (!name) return "";
  if (name.length > 249) return `at most 249 characters, not ${name.length}`;
  if (/^[.-]/.test(name)) return "must begin with a letter, digit or _";
  if (!NAME.test(name)) return "letters, digits, '.', '_' and '-' only";
  return taken(name) ? "a topic of this name exists" : "";
}
