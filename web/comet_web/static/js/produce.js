// The dialog that writes one record. `from` has its initial values: {partition, key, key_kind, kind, value, headers}.

import { api, Problem } from "./api.js";
import { base64Problem } from "./bytes.js";
import { form } from "./dialog.js";
import { el, root } from "./el.js";
import { faultOf, faultText, formatted } from "./json_text.js";
import { toast } from "./toast.js";

const KEYS = [["none", "no key"], ["text", "text"], ["base64", "base64"]];
const KINDS = [["json", "JSON"], ["text", "text"], ["base64", "base64"], ["tombstone", "tombstone: delete the key"]];
const ACKS = [["1", "the leader (acks=1)"], ["all", "all in-sync replicas (acks=all)"]];

// Resolves to the partition and offset of the record, or to null.
export async function produce(topic, from = {}) {
  const { partition_count: partitions } = await api("GET", `/v1/topics/${encodeURIComponent(topic)}`);
  const chosen = (name) => document.querySelector(`dialog[open] [name="${name}"]`)?.value;
  const shown = form({
    title: `Produce to ${topic}`,
    note: [
      "One record. ",
      el("button", { type: "button", class: "button small", onclick: (event) => several(event.target.closest("dialog"), topic) }, "Several records, or a file"),
      " ",
      el("button", { type: "button", class: "button small", onclick: (event) => tidied(event.target.closest("dialog")) }, "Format the value"),
    ],
    action: "Produce",
    wide: true,
    fields: [
      { name: "key_kind", label: "Key as", type: "select", options: KEYS, value: from.key_kind ?? "text" },
      { name: "key", label: "Key", value: from.key ?? "", autocomplete: "off", spellcheck: "false", check: (text) => (chosen("key_kind") === "base64" ? base64Problem(text) : "") },
      { name: "kind", label: "Value as", type: "select", options: KINDS, value: from.kind ?? "json" },
      { name: "partition", label: "Partition", type: "select", options: [["", "by key"], ...Array.from({ length: partitions }, (_, index) => [String(index), String(index)])], value: from.partition ?? "" },
      { name: "value", label: "Value", type: "textarea", rows: 8, value: from.value ?? "", check: (text) => valueProblem(chosen("kind") ?? from.kind ?? "json", text) },
      { name: "headers", label: "Headers", type: "textarea", rows: 3, value: from.headers ?? "", help: "One per line: name: value", check: headersProblem },
      { name: "acks", label: "Acknowledged by", type: "select", options: ACKS, value: "1" },
    ],
    submit: (values) => write(topic, values),
  });
  kinds();
  return shown;
}

// Closes the dialog of one record and opens that of several.
async function several(dialog, topic) {
  dialog.dispatchEvent(new Event("cancel", { cancelable: true }));
  (await import("./produce_many.js")).produceMany(topic);
}

// Writes a JSON value with line breaks; numbers keep their digits.
function tidied(dialog) {
  const value = dialog.querySelector('[name="value"]');
  const text = formatted(value.value);
  if (text === null) return;
  value.value = text;
  value.dispatchEvent(new Event("input", { bubbles: true }));
  value.focus();
}

// Checks a text again when its kind changes.
function kinds() {
  const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
  const part = (name) => dialog.querySelector(`[name="${name}"]`);
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
  part(part("key").disabled ? "value" : "key").focus();
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

async function write(topic, values) {
  const members = [content(values)];
  if (values.key_kind === "text") members.push(`"key":${JSON.stringify(values.key)}`);
  if (values.key_kind === "base64") members.push(`"key_base64":${JSON.stringify(values.key.replace(/\s/g, ""))}`);
  if (values.partition !== "") members.push(`"partition":${values.partition}`);
  const headers = values.headers.split("\n").filter((line) => line.trim()).map(header);
  if (headers.length) members.push(`"headers":${JSON.stringify(headers)}`);
  // As text, so that the value keeps every digit that was typed.
  const answer = await api("POST", `/v1/topics/${encodeURIComponent(topic)}/records?acks=${values.acks}`, `{${members.join(",")}}`);
  const [result] = answer.results;
  if (result.problem) throw new Problem(result.problem);
  const href = `${root}/topics/${encodeURIComponent(topic)}/records?partition=${result.partition}&offset=${result.offset}`;
  const shown = toast(`Written to partition ${result.partition} at offset ${result.offset}. `);
  shown.querySelector("span").append(el("a", { href }, "Open record"));
  return result;
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
