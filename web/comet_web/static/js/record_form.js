// The fields of a record in a dialog: key, value, headers, partition.

import { base64Problem } from "./bytes.js";
import { faultOf, faultText } from "./json_text.js";

const KEYS = [["none", "no key"], ["text", "text"], ["base64", "base64"]];
const KINDS = [["json", "JSON"], ["text", "text"], ["base64", "base64"], ["tombstone", "tombstone: delete the key"]];

// Specs for `field` of dialog.js. `from` has their initial values, {partition, key, key_kind, kind, value, headers}, and the
// `rows` of a value. `partitions`: their number, null where it is not known.
export function recordFields(from, partitions) {
  const chosen = (name, otherwise) => dialog()?.querySelector(`[name="${name}"]`)?.value ?? otherwise;
  return [
    { name: "key_kind", label: "Key as", type: "select", options: KEYS, value: from.key_kind ?? "text" },
    { name: "key", label: "Key", value: from.key ?? "", autocomplete: "off", spellcheck: "false", check: (text) => (chosen("key_kind", from.key_kind) === "base64" ? base64Problem(text) : "") },
    { name: "kind", label: "Value as", type: "select", options: KINDS, value: from.kind ?? "json" },
    partitionField(from.partition ?? "", partitions),
    { name: "value", label: "Value", type: "textarea", rows: from.rows ?? 8, value: from.value ?? "", check: (text) => valueProblem(chosen("kind", from.kind ?? "json"), text) },
    { name: "headers", label: "Headers", type: "textarea", rows: 3, value: from.headers ?? "", help: "One per line: name: value", check: headersProblem },
  ];
}

function partitionField(value, partitions) {
  const shared = { name: "partition", label: "Partition", value };
  if (partitions === null) return { ...shared, type: "number", min: 0, placeholder: "by key" };
  return { ...shared, type: "select", options: [["", "by key"], ...Array.from({ length: partitions }, (_, index) => [String(index), String(index)])] };
}

const dialog = () => [...document.querySelectorAll("dialog[open]")].at(-1);

// Checks a text of the open dialog again when its kind changes.
export function followKinds() {
  const shown = dialog();
  const part = (name) => shown.querySelector(`[name="${name}"]`);
  const update = (name, disabled) => {
    part(name).disabled = disabled;
    part(name).dispatchEvent(new Event("input", { bubbles: true }));
  };
  const follow = () => {
    update("key", part("key_kind").value === "none");
    update("value", part("kind").value === "tombstone");
  };
  for (const name of ["key_kind", "kind"]) part(name).addEventListener("change", follow);
  part("key").disabled = part("key_kind").value === "none";
  part("value").disabled = part("kind").value === "tombstone";
}

function valueProblem(kind, text) {
  if (kind === "base64") return base64Problem(text);
  if (kind !== "json") return "";
  if (!text.trim()) return "enter a JSON value";
  const fault = faultOf(text);
  return fault ? `invalid JSON, ${faultText(fault)}` : "";
}

function headersProblem(text) {
  const wrong = text.split("\n").findIndex((line) => line.trim() && line.indexOf(":") < 1);
  return wrong < 0 ? "" : `line ${wrong + 1}: name: value`;
}

// The record as members of a JSON object, as text, so that a value keeps every digit that was typed.
export function recordMembers(values) {
  const members = [content(values)];
  if (values.key_kind === "text") members.push(`"key":${JSON.stringify(values.key)}`);
  if (values.key_kind === "base64") members.push(`"key_base64":${JSON.stringify(values.key.replace(/\s/g, ""))}`);
  if (values.partition !== "") members.push(`"partition":${values.partition}`);
  const headers = values.headers.split("\n").filter((line) => line.trim()).map(header);
  if (headers.length) members.push(`"headers":${JSON.stringify(headers)}`);
  return members;
}

function content({ kind, value }) {
  if (kind === "tombstone") return '"tombstone":true';
  if (kind === "json") return `"value":${value}`;
  return kind === "text" ? `"text":${JSON.stringify(value)}` : `"base64":${JSON.stringify(value.replace(/\s/g, ""))}`;
}

function header(line) {
  const colon = line.indexOf(":");
  return { name: line.slice(0, colon).trim(), value: line.slice(colon + 1).trim() };
}
