// Records from pasted text or a file: JSON (a list, or one value), NDJSON, CSV. Pure.
//
//   parse(text, {format, typed})  -> {format, records: [{line, source}, …], problems: [{line, message}], more, fields, shaped}
//   lineOf(record, {key, shape})  -> {text}: the line that the gateway takes; or {problem}
//
// `source` is the JSON text of the record, so that every digit stays. `more`: there are more than RECORDS_MAX. `shaped`: the
// objects look like records of an export, with value, key and headers.

import { faultOf, faultText, partsOf } from "./json_text.js";

export const RECORDS_MAX = 50_000;
export const BYTES_MAX = 16 << 20; // of a file
const PROBLEMS_MAX = 1_000;
const LOOKED_AT = 50; // records, for the names of fields
const FIELDS_MAX = 100;
const COLUMNS_MAX = 500;
const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/;
const VALUES = ["value", "text", "base64", "tombstone"];
const TAKEN = new Set([...VALUES, "key", "key_base64", "headers"]); // members that are written
const KNOWN = new Set([...TAKEN, "partition", "offset", "timestamp_us"]); // of an export

export function parse(text, { format = "auto", typed = true, name = "" } = {}) {
  const plain = text.replace(/^\ufeff/, "");
  const kind = format === "auto" ? guessed(plain, name) : format;
  const found = { format: kind, records: [], problems: [], more: false };
  if (plain.trim()) ({ json: fromJson, ndjson: fromLines, csv: fromCsv })[kind](plain, found, typed);
  const shown = found.records.slice(0, LOOKED_AT).map(({ source }) => membersOf(source));
  found.fields = [...new Set(shown.flatMap((members) => [...members.keys()]))].slice(0, FIELDS_MAX);
  found.shaped = shown.length > 0 && shown.every((members) => VALUES.some((one) => members.has(one)) && [...members.keys()].every((one) => KNOWN.has(one)));
  return found;
}

function guessed(text, name) {
  const [, ending = ""] = name.toLowerCase().match(/\.([a-z]+)$/) ?? [];
  if (ending === "csv" || ending === "tsv") return "csv";
  if (ending === "ndjson" || ending === "jsonl") return "ndjson";
  const first = text.trimStart();
  if (first.startsWith("[")) return "json";
  if (first.startsWith("{") || ending === "json") {
    const end = first.indexOf("\n");
    return end > 0 && faultOf(first.slice(0, end)) === null && first.slice(end).trim() ? "ndjson" : "json";
  }
  return faultOf(first.split("\n", 1)[0]) === null ? "ndjson" : "csv";
}

// Returns false if the list is full.
function add(found, line, source) {
  if (found.records.length >= RECORDS_MAX) return !(found.more = true);
  found.records.push({ line, source });
  return true;
}

function wrong(found, line, message) {
  if (found.problems.length < PROBLEMS_MAX) found.problems.push({ line, message });
}

function fromJson(text, found) {
  const begin = text.search(/\S/);
  if (text[begin] !== "[") {
    const fault = faultOf(text);
    return fault ? wrong(found, fault.line, faultText(fault)) : void add(found, 1, text.trim());
  }
  const { parts, end, fault } = partsOf(text, begin, { partial: true });
  let line = 1;
  let at = 0;
  for (const { from, end: behind } of parts) {
    line += newlines(text, at, from);
    at = from;
    if (!add(found, line, text.slice(from, behind))) break;
  }
  if (fault) wrong(found, fault.line, faultText(fault));
  else if (text.slice(end).trim()) wrong(found, line, "there is more after the list");
}

function newlines(text, from, to) {
  let count = 0;
  for (let at = text.indexOf("\n", from); at >= 0 && at < to; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}

function fromLines(text, found) {
  const lines = text.split("\n");
  for (const [at, line] of lines.entries()) {
    if (!line.trim()) continue;
    const fault = faultOf(line);
    if (fault) wrong(found, at + 1, `column ${fault.column}: ${fault.message}`);
    else if (!add(found, at + 1, line.trim())) break;
  }
}

// ---- CSV: a line of names first; fields in quotes may hold commas, quotes ("") and line breaks

function fromCsv(text, found, typed) {
  const mark = separator(text);
  let names = null;
  for (const { line, fields, problem } of rows(text, mark)) {
    if (problem) {
      wrong(found, line, problem);
      return; // where quotes do not close, what follows has no meaning
    }
    if (names === null) {
      names = fields.map((field) => field.trim());
      const fault = namesFault(names);
      if (fault) return wrong(found, line, fault);
      names = names.map((name) => JSON.stringify(name));
    } else if (fields.length !== names.length) {
      wrong(found, line, `${fields.length} fields, and the first line names ${names.length}`);
    } else if (!add(found, line, `{${names.map((name, at) => `${name}:${cell(fields[at], typed)}`).join(",")}}`)) return;
  }
}

function namesFault(names) {
  if (names.length > COLUMNS_MAX) return `more than ${COLUMNS_MAX} columns`;
  if (names.includes("")) return "the first line names the columns, and one name is empty";
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  return twice === undefined ? "" : `the column ${twice} stands there twice`;
}

function cell(text, typed) {
  if (typed && text === "") return "null";
  if (typed && (NUMBER.test(text) || text === "true" || text === "false")) return text;
  return JSON.stringify(text);
}

// The mark that occurs most often in the first line.
function separator(text) {
  const end = text.indexOf("\n");
  const first = end < 0 ? text : text.slice(0, end);
  const counts = [",", ";", "\t"].map((mark) => [mark, first.split(mark).length]);
  return counts.reduce((best, one) => (one[1] > best[1] ? one : best))[0];
}

function* rows(text, mark) {
  let at = 0;
  let line = 1;
  while (at < text.length) {
    const begin = line;
    const fields = [];
    for (;;) {
      let field;
      if (text[at] === '"') {
        const parts = [];
        let from = at + 1;
        for (;;) {
          const quote = text.indexOf('"', from);
          if (quote < 0) return void (yield { line: begin, problem: "a quote is not closed" });
          parts.push(text.slice(from, quote));
          from = quote + 2;
          if (text[quote + 1] !== '"') {
            at = quote + 1;
            break;
          }
        }
        field = parts.join('"');
        line += newlines(field, 0, field.length);
        if (text[at] === "\r" && text[at + 1] === "\n") at += 1;
        if (at < text.length && text[at] !== mark && text[at] !== "\n") return void (yield { line, problem: "a quote closes inside of a field: write it twice" });
      } else {
        const from = at;
        while (at < text.length && text[at] !== mark && text[at] !== "\n") at += 1;
        field = text.slice(from, at);
        if (text[at] !== mark) field = field.replace(/\r$/, "");
      }
      fields.push(field);
      if (text[at] !== mark) break;
      at += 1;
    }
    at += 1; // the line break
    line += 1;
    if (fields.length > 1 || fields[0] !== "") yield { line: begin, fields };
  }
}

// ---- lines for the gateway

// The members of an object as {name: JSON text}; empty for another value.
function membersOf(source) {
  if (!source.startsWith("{")) return new Map();
  return new Map(partsOf(source).parts.map(({ from, end, name }) => [name, source.slice(from, end)]));
}

export function lineOf({ source }, { key = "", shape = "value" } = {}) {
  const members = key || shape === "record" ? membersOf(source) : null;
  if (shape === "record") {
    if (!VALUES.some((name) => members.has(name))) return { problem: "no value: a record has value, text, base64 or tombstone" };
    const taken = [...members].filter(([name]) => TAKEN.has(name) && !(key && name.startsWith("key")));
    return withKey(taken.map(([name, text]) => `${JSON.stringify(name)}:${text}`), members, key);
  }
  return withKey([`"value":${source.replace(/[\r\n]+/g, " ")}`], members, key);
}

function withKey(parts, members, key) {
  if (!key) return { text: `{${parts.join(",").replace(/[\r\n]+/g, " ")}}` };
  const text = members.get(key);
  if (text === undefined || text === "null") return { problem: `no key: the field ${key} is missing` };
  if (text.startsWith("{") || text.startsWith("[")) return { problem: `no key: the field ${key} is a list or an object` };
  parts.push(`"key":${text.startsWith('"') ? text : JSON.stringify(text)}`);
  return { text: `{${parts.join(",").replace(/[\r\n]+/g, " ")}}` };
}
