// The dialogs that set and delete a key, at the revision that the page shows. If another client was faster nothing is
// written: the dialog says which revision and value the key has now, and takes them on request.

import { api, Problem } from "./api.js";
import { base64Of, base64Problem, bytesOf, textOf } from "./bytes.js";
import { attempt, conditionOf, conflictRegion } from "./conflict.js";
import { confirm, field, open } from "./dialog.js";
import { el, root } from "./el.js";
import { faultOf, faultText, formatted } from "./json_text.js";
import { toast } from "./toast.js";

const EDITED_MAX = 256 << 10; // bytes of a value
const TOLD_MAX = 200; // characters of a value in a sentence
const TYPED_MAX = 60; // characters of a key that is typed to confirm
const KEY_BYTES_MAX = 512; // of a key in an address
const KINDS = [["json", "JSON"], ["text", "text"], ["base64", "base64"]];
const ALWAYS = ["always", "always, whichever value it has"];
const ABSENT = ["absent", "only if the key has no value"];

// ---- values

const utf8 = (text) => new TextEncoder().encode(text);

// A value as a form has it: {kind, value}.
function typed(bytes) {
  const text = textOf(bytes);
  if (text === null) return { kind: "base64", value: base64Of(bytes) };
  const laid = formatted(text);
  return laid === null ? { kind: "text", value: text } : { kind: "json", value: laid };
}

const asBytes = (kind, text) => (kind === "base64" ? bytesOf(text) : utf8(text));

function valueProblem(kind, text) {
  if (kind === "base64") return base64Problem(text);
  const fault = kind === "json" && faultOf(text);
  return fault ? `invalid JSON, ${faultText(fault)}` : "";
}

// ---- calls

// Every byte is percent-encoded if it is not a letter or digit, so that no browser or proxy takes it for a part of a path.
function path(topic, key) {
  if (/^\.{1,2}$/.test(textOf(key) ?? "")) {
    throw new Problem({ title: "A browser cannot name this key", detail: "it takes . and .. for parts of an address; use comet kv" });
  }
  const encoded = [...key].map((byte) => (/[A-Za-z0-9]/.test(String.fromCharCode(byte)) ? String.fromCharCode(byte) : `%${byte.toString(16).padStart(2, "0")}`));
  return `/v1/kv/${encodeURIComponent(topic)}/${encoded.join("")}`;
}

// The current value as {revision, bytes}, or null; with `revision` that one.
async function read(topic, key, revision = null) {
  const at = path(topic, key) + (revision === null ? "" : `?revision=${revision}`);
  const answer = await fetch(root + at, { credentials: "same-origin", headers: { accept: "application/octet-stream" } }).catch(() => null);
  if (answer?.ok) return { revision: answer.headers.get("etag").replaceAll('"', ""), bytes: new Uint8Array(await answer.arrayBuffer()) };
  const problem = (await answer?.json().catch(() => null)) ?? { title: "The gateway does not answer", hint: "Try again in a moment." };
  if (problem.code === "KEY_NOT_FOUND") return null;
  throw new Problem(problem);
}

// ---- a conflict

function told(bytes) {
  const text = textOf(bytes);
  if (text === null) return `${bytes.length.toLocaleString("en")} bytes that are not text`;
  if (!text) return "an empty value";
  return text.length > TOLD_MAX ? `${text.slice(0, TOLD_MAX)}…` : text;
}

// Runs a write. After a mismatch of revisions the dialog says which revision and value the key has now, and hands it to
// `load` on request.
function attemptAt(topic, key, region, load, write) {
  return attempt(region, write, async () => {
    const now = await read(topic, key);
    const sentence = now
      ? ["Another client was faster. Revision ", el("b", {}, now.revision), " is the current one, with the value ", el("code", {}, told(now.bytes))]
      : ["Another client was faster: the key was deleted and has no value now."];
    return { sentence, choices: [[now ? `Load revision ${now.revision}` : "Continue without a value", () => load(now)]] };
  });
}

// ---- set

// The dialog for a key that is typed, or given as bytes: {key, expected, kind, value}. Resolves to {address} of the key, or
// null.
export async function setKey(topic, { key = null, expected = "absent", kind = "json", value = "" } = {}) {
  const part = (name) => document.querySelector(`dialog[open] [name="${name}"]`);
  const choices = (now) => [now === "absent" ? ABSENT : [now, `only if revision ${now} is current`], ALWAYS];
  const fields = [
    ...(key ? [] : [
      field({ name: "key_kind", label: "Key as", type: "select", options: KINDS.slice(1), value: "text" }),
      field({ name: "key", label: "Key", required: true, autocomplete: "off", spellcheck: "false", check: (text) => (part("key_kind")?.value === "base64" ? base64Problem(text) : "") }),
    ]),
    field({ name: "kind", label: "Value as", type: "select", options: KINDS, value: kind }),
    field({ name: "expected", label: "Write", type: "select", options: choices(expected), value: expected }),
    field({ name: "value", label: "Value", type: "textarea", rows: 10, value, check: (text) => valueProblem(part("kind")?.value ?? kind, text) }),
  ];
  const region = conflictRegion();
  const load = (now) => {
    const next = now ? { expected: now.revision, ...typed(now.bytes) } : { expected: "absent" };
    part("expected").replaceChildren(...choices(next.expected).map(([name, text]) => el("option", { value: name }, text)));
    if (next.kind) [part("kind").value, part("value").value] = [next.kind, next.value];
    part("value").dispatchEvent(new Event("input", { bubbles: true }));
    part("value").focus();
  };
  const shown = open({
    title: key ? `Set ${nameOf(key)}` : "New key",
    wide: true,
    content: [el("div", { class: "fields columns" }, fields.map((each) => each.node)), region],
    action: "Write",
    submit: async () => {
      const values = Object.fromEntries(fields.map((each) => [each.name, each.read()]));
      const target = key ?? asBytes(values.key_kind, values.key);
      const body = new Blob([asBytes(values.kind, values.value)]);
      const headers = { "content-type": "application/octet-stream", ...conditionOf(values.expected) };
      const { revision } = await attemptAt(topic, target, region, load, () => api("PUT", path(topic, target), body, { headers }));
      toast(`Revision ${revision} of ${nameOf(target)} written.`);
      return { address: addressOf(target) };
    },
  });
  for (const [name, of] of [["kind", "value"], ["key_kind", "key"]]) {
    part(name)?.addEventListener("change", () => part(of).dispatchEvent(new Event("input", { bubbles: true })));
  }
  part(key ? "value" : "key").focus();
  return shown;
}

// The dialog for the key that the page shows, with the value of the revision shown.
export async function editKey(topic, { state, key_base64, revision }) {
  const key = bytesOf(key_base64);
  if (state !== "value") return setKey(topic, { key });
  const found = await read(topic, key, revision);
  if (!found) throw new Problem({ title: `Revision ${revision} was removed from the log`, detail: "The key was changed; the page shows the new value in a moment." });
  if (found.bytes.length > EDITED_MAX) {
    throw new Problem({ title: "The value is too long to edit here", detail: `it has ${found.bytes.length.toLocaleString("en")} bytes; use comet kv put` });
  }
  return setKey(topic, { key, expected: revision, ...typed(found.bytes) });
}

// ---- delete

export async function deleteKey(topic, { key_base64, revision }) {
  const key = bytesOf(key_base64);
  const name = nameOf(key);
  const region = conflictRegion();
  let expected = revision;
  const line = el("dd", {}, revision);
  const load = (now) => {
    expected = now?.revision ?? null;
    line.textContent = expected ?? "none: the key has no value";
  };
  return confirm({
    title: `Delete ${name}`,
    note: ["Readers of the key find no value from then on. A record without a value is written; compaction removes the older revisions.", region],
    effect: [["Revision", line]],
    type: name.length <= TYPED_MAX ? name : "delete",
    submit: async () => {
      if (expected === null) return true;
      const answer = await attemptAt(topic, key, region, load, () => api("DELETE", path(topic, key), undefined, { headers: conditionOf(expected) }));
      toast(`${name} deleted by revision ${answer.revision}.`);
      return true;
    },
  });
}

// ---- names

// A key as text; as base64 if it is not, or has letters that are not seen.
function nameOf(key) {
  const text = textOf(key);
  return text === null || /[\p{C}\p{Z}]/u.test(text.replaceAll(" ", "")) ? base64Of(key) : text;
}

function addressOf(key) {
  if (key.length > KEY_BYTES_MAX) return "";
  const text = textOf(key);
  return new URLSearchParams(text === null ? { key_base64: base64Of(key) } : { key: text });
}
