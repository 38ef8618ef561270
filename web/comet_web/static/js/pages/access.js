// The page of access: rules, roles, access keys and quotas are added and removed, and a question is answered.

import { on } from "../actions.js";
import { call, texts } from "../acts.js";
import { api } from "../api.js";
import { tableOf } from "../bind.js";
import { confirm, form, open } from "../dialog.js";
import { el } from "../el.js";
import { navigate, withQuery } from "../navigate.js";
import { toast } from "../toast.js";
import { many } from "../words.js";

const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe"];
const KINDS = ["topic", "group", "transaction", "cluster"];
const PRINCIPAL = "[a-z]+:[^\\s*]{1,256}";
const ROLE = "role:[^\\s*]{1,256}";
const QUOTA = [
  ["bytes_in", "Bytes in per second"],
  ["bytes_out", "Bytes out per second"],
  ["requests", "Requests per second"],
  ["streams", "Open streams"],
];
const UPDATES_MAX = 10;
const ONE = { keys: true, quotas: true }; // tables whose acts are for one row
const chosen = { rules: [], roles: [], keys: [], quotas: [] };

export function start() {
  const acts = {
    "add-rule": addRule,
    "remove-rules": () => removeRules(chosen.rules.map((key) => JSON.parse(key))),
    "grant-role": grantRole,
    "revoke-roles": () => revokeRoles(chosen.roles.map((key) => JSON.parse(key))),
    "create-key": createKey,
    "revoke-key": () => revokeKey(chosen.keys[0]),
    "set-quota": () => setQuota(),
    "change-quota": () => changeQuota(chosen.quotas[0]),
    "remove-quota": () => removeQuota(chosen.quotas[0]),
  };
  for (const [name, act] of Object.entries(acts)) on(name, async () => (await act()) && showNext());
  document.addEventListener("comet:selection", ({ detail }) => choose(detail.table, detail.keys));
  for (const table of Object.keys(chosen)) choose(table, [...(tableOf(table)?.picked ?? [])]); // before this script ran
  question(document.querySelector("[data-question]"));
}

function choose(table, keys) {
  chosen[table] = keys;
  const shown = document.querySelector(`[data-chosen="${table}"]`);
  shown.hidden = !keys.length;
  shown.querySelector("[data-chosen-text]").textContent = `${keys.length} selected${ONE[table] && keys.length > 1 ? ": select one" : ""}`;
  for (const button of shown.querySelectorAll("button")) button.hidden = Boolean(ONE[table]) && keys.length > 1;
}

// Shows the user's own changes without a click on "List changed", as brokers report them.
function showNext() {
  let updates = 0;
  document.addEventListener("comet:document", function next() {
    for (const button of document.querySelectorAll("[data-changed]:not([hidden])")) button.click();
    if ((updates += 1) >= UPDATES_MAX) document.removeEventListener("comet:document", next);
  });
}

// ---- rules

function addRule() {
  const { type, ...shown } = texts("addRule", {});
  return form({
    ...shown,
    wide: true,
    columns: true,
    fields: [
      { name: "principal", label: "Principal", required: true, pattern: `\\*|${PRINCIPAL}`, placeholder: "client:billing", autocomplete: "off", spellcheck: "false", help: "client:NAME, role:NAME, or * for all clients." },
      { name: "effect", label: "Effect", type: "select", options: ["allow", "deny"] },
      ...OPERATIONS.map((name) => ({ name: `may_${name}`, label: name, type: "checkbox", value: name === "read" })),
      { name: "kind", label: "Kind", type: "select", options: KINDS },
      { name: "name", label: "Name", required: true, autocomplete: "off", spellcheck: "false", placeholder: "invoices", help: "Exact, or a prefix and *. The cluster has the name *." },
    ],
    submit: async ({ principal, effect, kind, name, ...rest }) => {
      const operations = OPERATIONS.filter((each) => rest[`may_${each}`]);
      const found = await call("addRule", {}, { principal, operations, kind, name, deny: effect === "deny" });
      toast(`${found.changed ? "Rule added" : "The rule was there before"}${found.enforced ? "." : "; rules are not enforced."}`, found.enforced ? "good" : "warn");
      return found;
    },
  });
}

const ruleText = ({ deny, principal, operations, kind, name }) => `${deny ? "deny" : "allow"} ${principal} ${operations.join(",")} ${kind} ${name}`;

function removeRules(rules) {
  return eachOf(rules, {
    ...texts("removeRule", {}),
    words: ["Remove", "rule", "removed"],
    effect: rules.map((rule) => ["Rule", ruleText(rule)]),
    act: (rule) => call("removeRule", {}, rule),
  });
}

// Acts on each of the rows after one confirmation; a retry goes on with those that are left.
function eachOf(rows, { words: [verb, noun, done], act, ...shown }) {
  const counted = many(rows.length, noun);
  const left = new Set(rows);
  return confirm({
    ...shown,
    ...(rows.length > 1 ? { title: `${verb} ${counted}`, action: `${verb} ${counted}` } : {}),
    danger: true,
    submit: async () => {
      for (const row of [...left]) {
        await act(row);
        left.delete(row);
      }
      toast(`${counted} ${done}.`);
    },
  });
}

// ---- roles

function grantRole() {
  const { type, ...shown } = texts("grantRole", {});
  return form({
    ...shown,
    fields: [
      { name: "role", label: "Role", required: true, pattern: ROLE, placeholder: "role:finance", autocomplete: "off", spellcheck: "false" },
      { name: "principal", label: "Principal", required: true, pattern: PRINCIPAL, placeholder: "client:billing", autocomplete: "off", spellcheck: "false" },
    ],
    submit: async ({ role, principal }) => {
      const found = await call("grantRole", {}, { role, principal });
      toast(`${found.changed ? "Role granted" : "The principal had the role before"}${found.enforced ? "." : "; rules are not enforced."}`, found.enforced ? "good" : "warn");
      return found;
    },
  });
}

function revokeRoles(members) {
  return eachOf(members, {
    ...texts("revokeRole", {}),
    words: ["Revoke", "role", "revoked"],
    effect: members.map(({ role, principal }) => ["Role", `${role} of ${principal}`]),
    act: (member) => call("revokeRole", {}, member),
  });
}

// ---- access keys

async function createKey() {
  const { type, ...shown } = texts("createAccessKey", {});
  const made = await form({
    ...shown,
    fields: [
      { name: "principal", label: "Principal", required: true, pattern: PRINCIPAL, placeholder: "client:billing", autocomplete: "off", spellcheck: "false" },
      { name: "days", label: "Days until it expires", type: "number", min: 0, max: 3650, value: 90, required: true, help: "0: it does not expire." },
    ],
    submit: ({ principal, days }) => call("createAccessKey", {}, { principal, days: Number(days) }),
  });
  if (!made) return null;
  await open({
    title: `The key of ${made.key.principal}`,
    wide: true,
    content: [
      el("p", {}, "Keep it in a file that only its owner can read. It is not shown again."),
      el("div", { class: "shell" }, el("code", { dataset: { secret: "" } }, made.text), el("button", { type: "button", class: "button small", dataset: { copy: made.text } }, "Copy")),
    ],
  });
  return made;
}

function revokeKey(id) {
  const { cells } = tableOf("keys").rows.get(id);
  const principal = typeof cells[1] === "string" ? cells[1] : cells[1].t;
  return confirm({
    ...texts("revokeAccessKey", { id }),
    effect: [["Principal", principal]],
    submit: async () => {
      const found = await call("revokeAccessKey", { id });
      toast(found.revoked ? `Key ${id} revoked.` : `No access key has the id ${id}.`, found.revoked ? "good" : "warn");
    },
  });
}

// ---- quotas

async function changeQuota(principal) {
  const { quotas } = await api("GET", `/v1/quotas?principal=${encodeURIComponent(principal)}`);
  return setQuota(quotas[0] ?? { principal });
}

function setQuota(known = {}) {
  const { type, ...shown } = texts("setQuota", {});
  return form({
    ...shown,
    columns: true,
    fields: [
      { name: "principal", label: "Principal", required: true, pattern: `\\*|${PRINCIPAL}`, placeholder: "client:billing", value: known.principal ?? "", readonly: Boolean(known.principal), autocomplete: "off", spellcheck: "false", help: "*: each principal without a quota of its own." },
      ...QUOTA.map(([name, label]) => ({ name, label, type: "number", min: 0, step: 1, required: true, value: String(known[name] ?? 0) })),
    ],
    submit: async ({ principal, ...limits }) => {
      const body = Object.fromEntries(QUOTA.map(([name]) => [name, Number(limits[name])]));
      const found = await call("setQuota", { principal }, body);
      toast(`Quota of ${principal} set.`);
      return found;
    },
  });
}

function removeQuota(principal) {
  return confirm({
    ...texts("removeQuota", { principal }),
    danger: true,
    submit: async () => {
      await call("removeQuota", { principal });
      toast(`Quota of ${principal} removed.`);
    },
  });
}

// ---- the question

function question(asked) {
  const { kind, name } = asked.elements;
  const arrange = () => {
    const cluster = kind.value === "cluster";
    asked.querySelector("[data-named]").hidden = cluster;
    name.disabled = cluster;
    name.required = !cluster;
  };
  arrange();
  kind.addEventListener("change", arrange);
  asked.addEventListener("submit", (event) => {
    event.preventDefault();
    const { principal, operation, roles } = asked.elements;
    const wanted = { principal: principal.value, operation: operation.value, kind: kind.value, name: kind.value === "cluster" ? null : name.value, roles: roles.value };
    navigate(withQuery(wanted));
  });
}
