// A schedule as the API has it.

import { Problem } from "./api.js";
import { bytesOf } from "./bytes.js";
import { root } from "./el.js";
import { partsOf } from "./json_text.js";

export const pathOf = ({ topic, schedule }) => `/v1/schedules/${encodeURIComponent(topic)}/${encodeURIComponent(schedule)}`;

// The schedule with its record as they are now: {schedule, record, source, bytes}; null: it does not exist. `source` is the
// text of the record, `bytes` its value, null for a tombstone: a JSON value keeps every digit.
export async function read(what) {
  const answer = await fetch(root + pathOf(what), { credentials: "same-origin", headers: { accept: "application/json" } }).catch(() => null);
  const text = (await answer?.text().catch(() => "")) ?? "";
  if (answer?.ok) return parsed(text);
  const problem = problemOf(text);
  if (problem.code === "SCHEDULE_NOT_FOUND") return null;
  throw new Problem({ status: answer?.status ?? 0, ...problem });
}

function problemOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { title: "The gateway does not answer", hint: "Try again in a moment." };
  }
}

function parsed(text) {
  const { record, ...schedule } = JSON.parse(text);
  const part = (of, name) => partsOf(text, of).parts.find((each) => each.name === name);
  const { from, end } = part(0, "record");
  return { schedule, record, source: text.slice(from, end), bytes: valueOf(record, () => text.slice(...limits(part(from, "value")))) };
}

const limits = ({ from, end }) => [from, end];
const utf8 = (text) => new TextEncoder().encode(text);

function valueOf(record, source) {
  if (record.tombstone) return null;
  if ("value" in record) return utf8(source());
  return "text" in record ? utf8(record.text) : bytesOf(record.base64 ?? "");
}
