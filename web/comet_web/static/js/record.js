// The panel of one record, beside the page: decoded, raw, hex, headers. Also for dead letters.
//
//   show({topic, partition, offset}, {from, facts, actions})
//
// Fetches the record. `from` gets the focus back; `facts` [[label, text], …] and `actions` [node, …] are added to its
// own. Content is shown as text only, up to a limit.

import { api } from "./api.js";
import { base64Of, bytesOf, textOf } from "./bytes.js";
import { copy } from "./clipboard.js";
import { el, icon, root } from "./el.js";
import { decode } from "./exact.js";
import { tree } from "./tree.js";

const FETCHED_MAX = 8 << 20; // bytes of a record that are fetched
const SHOWN_MAX = 128 << 10; // bytes that are shown
const HEX_MAX = 4 << 10;
const HEADER_MAX = 2_000;
const TRACEBACK = "comet-dead-letter-traceback";
const DIED = "comet-dead-letter-time-us";

let shown = null; // {panel, from}

export async function show({ topic, partition, offset }, { from = null, facts = [], actions = [] } = {}) {
  hide(false);
  const title = el("h2", { id: "record-title", tabindex: "-1" }, topic, el("span", { class: "hint" }, `partition ${partition} · offset ${offset}`));
  const close = el("button", { type: "button", class: "plain", "aria-label": "Close the record", title: "Close (Esc)", onclick: () => hide() }, icon("close"));
  const body = el("div", { class: "record-body", "aria-busy": "true" }, el("p", { class: "hint" }, "Loading …"));
  const panel = el("aside", { class: "record", role: "dialog", "aria-labelledby": "record-title" }, el("header", {}, title, el("span", { class: "grow" }), close), body);
  shown = { panel, from };
  document.body.append(panel);
  title.focus({ preventScroll: true });
  await load(body, { topic, partition, offset }, facts, actions);
}

// A record's content without the panel, for a row that opens below itself.
export function content(id) {
  const body = el("div", { class: "record-body", "aria-busy": "true" }, el("p", { class: "hint" }, "Loading …"));
  load(body, id, [["Partition, offset", `${id.partition}, ${id.offset}`]], []);
  return body;
}

async function load(body, { topic, partition, offset }, facts, actions) {
  try {
    const record = await read(topic, partition, offset);
    if (body.isConnected) fill(body, { topic, partition, offset }, record, facts, actions);
  } catch (error) {
    body.replaceChildren(
      el("p", { class: "notice", dataset: { tone: "bad" }, role: "alert" }, [error.title, error.detail, error.hint].filter(Boolean).join(" · ")),
      ...actions,
    );
  } finally {
    body.removeAttribute("aria-busy");
  }
}

export function hide(back = true) {
  if (!shown) return;
  const { panel, from } = shown;
  shown = null;
  panel.remove();
  for (const row of document.querySelectorAll("tr[aria-selected]")) row.removeAttribute("aria-selected");
  if (back && from?.isConnected) from.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !shown || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  hide();
});

const at = ({ topic, partition, offset }) => `/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}/records/${offset}`;

async function read(topic, partition, offset) {
  const path = `/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}/records`;
  const found = await api("GET", `${path}?offset=${offset}&limit=1&max_bytes=${FETCHED_MAX}&values=base64&isolation=uncommitted`);
  const record = found.records[0];
  if (record?.offset === String(offset)) return record;
  throw { title: "No such record", detail: `offset ${offset} of partition ${partition} was deleted or is a transaction marker` };
}

function fill(body, id, record, facts, actions) {
  const value = record.tombstone ? null : bytesOf(record.base64 ?? "");
  const key = record.key_base64 === undefined ? null : bytesOf(record.key_base64);
  const size = (value?.length ?? 0) + (key?.length ?? new TextEncoder().encode(record.key ?? "").length);
  const permalink = `${root}/topics/${encodeURIComponent(id.topic)}/records?partition=${id.partition}&offset=${id.offset}`;
  const keyText = record.key ?? (key ? null : undefined);
  const parts = [
    el("div", { class: "record-acts" },
      copier("Copy value", () => (value ? (textOf(value) ?? record.base64) : "")),
      copier("Copy link", () => new URL(permalink, location.href).href),
      el("button", { type: "button", class: "button small", onclick: async () => (await import("./produce.js")).produce(id.topic, again(id, record, value)) }, icon("send"), "Copy into Produce"),
      value && el("a", { class: "button small", href: root + at(id) + "/value", download: "" }, icon("download"), "Download"),
      actions,
    ),
    el("dl", { class: "facts" }, rowsOf([
      ["Time", timeOf(record.timestamp_us)],
      ["Size", `${size.toLocaleString("en")} bytes`],
      ["Key", keyText === undefined ? muted("none") : keyText === null ? code(`${hexLine(key)} (${key.length} bytes)`) : code(cut(keyText, HEADER_MAX))],
      ...diedOf(record.headers ?? []),
      ...(record.encrypted === undefined ? [] : [["Value", muted(`encrypted with key ${record.encrypted}; only clients have it`)]]),
      ...facts,
    ])),
    tracebackOf(record.headers ?? []),
    headersOf((record.headers ?? []).filter(({ name }) => name !== TRACEBACK)),
    valueOrTombstone(value, root + at(id) + "/value"),
  ];
  body.replaceChildren(...parts.filter(Boolean));
}

// The headers and the value of a record that is in no log, such as that of a schedule. `value` are bytes, null for a
// tombstone.
export function unwritten(headers, value) {
  const acts = value && el("div", { class: "record-acts" }, copier("Copy value", () => textOf(value) ?? base64Of(value)));
  return [acts, headersOf(headers), valueOrTombstone(value)].filter(Boolean);
}

// `whole`: the address of the value, for one that is too long to show.
function valueOrTombstone(value, whole = "") {
  return value === null ? el("p", { class: "notice" }, "Tombstone: no value; deletes the key.") : valueOf(value, whole);
}

const rowsOf = (facts) => facts.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]);
const muted = (text) => el("span", { dataset: { tone: "muted" } }, text);
const code = (text) => el("code", {}, text);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}… (${text.length.toLocaleString("en")} characters)` : text);

function timeOf(text) {
  const us = BigInt(text);
  const time = new Date(Number(us / 1000n));
  if (Number.isNaN(time.getTime())) return `${text} µs`;
  const iso = time.toISOString().replace("T", " ").replace("Z", "");
  return [`${iso}${String(us % 1000n).padStart(3, "0")} UTC`, el("span", { class: "hint" }, ` · local ${time.toLocaleTimeString()}`)];
}

function headersOf(headers) {
  if (!headers.length) return null;
  const rows = headers.map(({ name, value, base64 }) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, code(value === undefined ? hexLine(bytesOf(base64)) : cut(value, HEADER_MAX)))),
  );
  return el("section", {}, el("h3", {}, `Headers · ${headers.length}`), el("table", { class: "record-headers" }, el("tbody", {}, rows)));
}

// What a dead letter says of its death, beside the reason.
function diedOf(headers) {
  const text = headers.find(({ name }) => name === DIED)?.value ?? "";
  return /^[0-9]{1,17}$/.test(text) ? [["Died", timeOf(text)]] : [];
}

function tracebackOf(headers) {
  const text = headers.find(({ name }) => name === TRACEBACK)?.value;
  return text && el("section", {}, el("h3", {}, "Traceback"), el("div", { class: "record-value" }, el("pre", { tabindex: "0", "aria-label": "Traceback" }, text)));
}

function copier(label, text) {
  return el("button", { type: "button", class: "button small", onclick: () => copy(text()) }, icon("copy"), label);
}

// Initial values of the dialog Produce.
function again({ partition }, record, value) {
  const text = value && textOf(value);
  return {
    partition,
    ...(record.key_base64 !== undefined ? { key: record.key_base64, key_kind: "base64" } : { key: record.key ?? "", key_kind: record.key === undefined ? "none" : "text" }),
    ...(value === null ? { kind: "tombstone", value: "" } : text === null ? { kind: "base64", value: record.base64 } : { kind: isJson(text) ? "json" : "text", value: text }),
    headers: (record.headers ?? []).filter((each) => each.value !== undefined).map((each) => `${each.name}: ${each.value}`).join("\n"),
  };
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// ---- the value, in three ways

function valueOf(value, whole) {
  const text = textOf(value);
  const small = value.length <= SHOWN_MAX;
  const decoded = text !== null && small ? decode(text) : undefined;
  const ways = [
    decoded !== undefined && ["Decoded", () => tree(decoded)],
    text !== null && ["Raw", () => el("pre", { tabindex: "0", "aria-label": "Value as text" }, small ? text : text.slice(0, SHOWN_MAX))],
    ["Hex", () => el("pre", { tabindex: "0", "aria-label": "Value in hexadecimal" }, hex(value.subarray(0, HEX_MAX)))],
  ].filter(Boolean);
  const note = el("p", { class: "notice", hidden: true });
  const inside = el("div", { class: "record-value", role: "tabpanel", "aria-label": "Value" });
  const tabs = ways.map(([name], index) =>
    el("button", { type: "button", role: "tab", onclick: () => choose(index), onkeydown: (event) => move(event, index) }, name),
  );
  const choose = (index) => {
    tabs.forEach((tab, other) => {
      tab.setAttribute("aria-selected", String(other === index));
      tab.tabIndex = other === index ? 0 : -1;
    });
    const [name, make] = ways[index];
    inside.replaceChildren(make());
    const most = name === "Hex" ? HEX_MAX : SHOWN_MAX;
    note.hidden = value.length <= most;
    note.replaceChildren(...[
      `Only the first ${most.toLocaleString("en")} of ${value.length.toLocaleString("en")} bytes are shown. `,
      whole && el("a", { href: whole, download: "" }, "Download all"),
    ].filter(Boolean));
  };
  const move = (event, index) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = (index + by + tabs.length) % tabs.length;
    choose(next);
    tabs[next].focus();
  };
  choose(0);
  const list = el("div", { class: "segments", role: "tablist", "aria-label": "Value format" }, tabs);
  return el("section", {}, el("div", { class: "toolbar" }, el("h3", {}, "Value"), list), note, inside);
}

const two = (byte) => byte.toString(16).padStart(2, "0");
const hexLine = (bytes) => [...bytes.subarray(0, 64)].map(two).join(" ") + (bytes.length > 64 ? " …" : "");

function hex(bytes) {
  const lines = [];
  for (let line = 0; line < bytes.length; line += 16) {
    const part = [...bytes.subarray(line, line + 16)];
    const left = part.map(two).join(" ").padEnd(47);
    const right = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${line.toString(16).padStart(6, "0")}  ${left}  ${right}`);
  }
  return lines.join("\n") || "empty";
}
