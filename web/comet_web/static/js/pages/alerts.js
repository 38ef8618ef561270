// The page of alerts: rules are made, changed, muted, acknowledged, tested and deleted; this browser's notifications.

import { on } from "../actions.js";
import { api } from "../api.js";
import { tableOf } from "../bind.js";
import { confirm, field, form, open } from "../dialog.js";
import { el } from "../el.js";
import { live } from "../live.js";
import { permission, request, shows, stop } from "../notify.js";
import { toast } from "../toast.js";
import { many } from "../words.js";

// By kind: its name, the fields that it has, and what its threshold counts.
const RECORDS = ["topic", "key", "filter"];
const KINDS = {
  value: ["A number in records", [...RECORDS, "field", "operator"], "The number in the newest matching record."],
  change: ["A change of a number", [...RECORDS, "field", "operator", "window_s"], "Percent, within the window. Above: a rise; below: a fall."],
  count: ["A count of records", [...RECORDS, "window_s"], "Matching records within the window."],
  stale: ["No record for a time", RECORDS, "Seconds without a matching record."],
  lag: ["Lag of a group, in records", ["group", "topic"], "Records."],
  lag_seconds: ["Lag of a group, in seconds", ["group"], "Age of the oldest uncommitted record, in seconds."],
  offline: ["Partitions without a leader", ["topic"], "Partitions; with 0 one is enough."],
  under_replicated: ["Under-replicated partitions", ["topic"], "Partitions; with 0 one is enough."],
};
const PLAIN = { autocomplete: "off", spellcheck: "false", autocapitalize: "off" };
const MUTES = [["900", "15 minutes"], ["3600", "1 hour"], ["28800", "8 hours"], ["86400", "1 day"], ["604800", "7 days"], ["0", "End the mute"]];
const NUMBERS = ["threshold", "window_s", "for_s", "cool_down_s"];
const UPDATES_MAX = 10;
const TELLING = {
  denied: "This browser does not allow notifications for this address: change that in the settings of the site.",
  unsupported: "This browser has no notifications, or allows them only over HTTPS.",
};
let chosen = [];

export function start() {
  const acts = {
    "new-alert": () => edit(),
    "edit-alert": async () => edit(await api("GET", pathOf(chosen[0]))),
    "acknowledge-alert": acknowledge,
    "mute-alert": mute,
    "test-alert": test,
    "delete-alerts": remove,
  };
  for (const [name, act] of Object.entries(acts)) on(name, async () => (await act()) && showNext());
  on("notify", notify);
  document.addEventListener("comet:selection", ({ detail }) => detail.table === "alerts" && choose(detail.keys));
  choose([...(tableOf("alerts")?.picked ?? [])]); // rows selected before this script ran
  tellPermission();
}

const pathOf = (id) => `/v1/alerts/${encodeURIComponent(id)}`;

function choose(keys) {
  chosen = keys;
  const shown = document.querySelector("[data-chosen]");
  shown.hidden = !keys.length;
  shown.querySelector("[data-chosen-text]").textContent = `${keys.length} selected`;
  for (const button of shown.querySelectorAll("button")) {
    button.hidden = keys.length > 1 && !["delete-alerts", "mute-alert"].includes(button.dataset.action);
  }
}

// Shows the user's own changes without a click on "List changed".
function showNext() {
  let updates = 0;
  document.addEventListener("comet:document", function next() {
    for (const button of document.querySelectorAll("[data-changed]:not([hidden])")) button.click();
    if ((updates += 1) >= UPDATES_MAX) document.removeEventListener("comet:document", next);
  });
  live.refresh();
}

// ---- the form

function edit(known = null) {
  const rule = known?.rule ?? {};
  const channels = rule.channels ?? [];
  const urls = channels.filter(({ type }) => type === "webhook").map(({ url }) => url);
  const to = channels.filter(({ type }) => type === "email").flatMap((each) => each.to);
  const specs = [
    { name: "name", label: "Name", required: true, maxlength: 100, value: rule.name ?? "", placeholder: "ACME above 150", ...PLAIN },
    { name: "severity", label: "Severity", type: "select", options: ["info", "warning", "critical"], value: rule.severity ?? "warning" },
    { name: "kind", label: "Watches", type: "select", options: Object.entries(KINDS).map(([kind, [text]]) => [kind, text]), value: rule.kind ?? "value" },
    { name: "topic", label: "Topic", maxlength: 249, value: rule.topic ?? "", placeholder: "quotes", ...PLAIN },
    { name: "group", label: "Group", maxlength: 249, value: rule.group ?? "", placeholder: "engine", ...PLAIN },
    { name: "key", label: "Key", maxlength: 500, value: rule.key ?? "", placeholder: "any", ...PLAIN },
    { name: "filter", label: "Filter of records", maxlength: 500, value: rule.filter ?? "", placeholder: "side=buy && size>100", ...PLAIN },
    { name: "field", label: "Field", maxlength: 500, value: rule.field ?? "", placeholder: "price", ...PLAIN },
    { name: "operator", label: "Fires when", type: "select", options: ["above", "below"], value: rule.operator ?? "above" },
    { name: "threshold", label: "Threshold", type: "number", step: "any", required: true, value: rule.threshold ?? "", help: " " },
    { name: "window_s", label: "Window in seconds", type: "number", min: 1, max: 86400, value: rule.window_s || 60 },
    { name: "for_s", label: "For at least, in seconds", type: "number", min: 0, max: 86400, required: true, value: rule.for_s ?? 0 },
    { name: "cool_down_s", label: "Seconds between notices", type: "number", min: 0, max: 86400, required: true, value: rule.cool_down_s ?? 300 },
    { name: "enabled", label: "Enabled", type: "checkbox", value: rule.enabled ?? true },
    { name: "webhooks", label: "Webhooks", type: "textarea", rows: 2, value: urls.join("\n"), help: "One URL a line, with https or http." },
    { name: "emails", label: "E-mail to", value: to.join(", "), placeholder: "ops@example.com", help: "Several with commas.", ...PLAIN },
    { name: "browser", label: "Notify open pages", type: "checkbox", value: known ? channels.some(({ type }) => type === "browser") : true },
  ];
  const shown = Object.fromEntries(specs.map((spec) => [spec.name, field(spec)]));
  const kind = shown.kind.node.querySelector("select");
  const arrange = () => {
    const [, has, help] = KINDS[kind.value];
    for (const name of ["topic", "group", "key", "filter", "field", "operator", "window_s"]) shown[name].node.hidden = !has.includes(name);
    shown.threshold.node.querySelector(".help").textContent = help;
  };
  kind.addEventListener("change", arrange);
  arrange();
  return open({
    title: known ? "Edit alert" : "New alert",
    wide: true,
    content: [el("div", { class: "fields columns" }, Object.values(shown).map(({ node }) => node))],
    action: known ? "Save" : "Create",
    submit: async () => {
      const body = bodyOf(Object.fromEntries(Object.entries(shown).map(([name, each]) => [name, each.read()])));
      const found = await api(known ? "PUT" : "POST", known ? pathOf(known.id) : "/v1/alerts", body);
      toast(`Alert ${found.rule.name} ${known ? "saved" : "created"}.`);
      return found;
    },
  });
}

function bodyOf({ webhooks, emails, browser, ...given }) {
  const [, has] = KINDS[given.kind];
  const optional = new Set(["topic", "group", "key", "filter", "field", "operator", "window_s"]);
  const body = Object.fromEntries(Object.entries(given).filter(([name]) => !optional.has(name) || has.includes(name)));
  for (const name of NUMBERS) if (name in body) body[name] = Number(body[name]);
  const urls = webhooks.split(/\s+/).filter(Boolean);
  const to = emails.split(/[\s,]+/).filter(Boolean);
  body.channels = [
    ...urls.map((url) => ({ type: "webhook", url })),
    ...(to.length ? [{ type: "email", to }] : []),
    ...(browser ? [{ type: "browser" }] : []),
  ];
  return body;
}

// ---- acts

async function acknowledge() {
  const found = await api("POST", `${pathOf(chosen[0])}/acknowledge`);
  toast(`Alert ${found.rule.name} acknowledged.`);
  return found;
}

function mute() {
  const ids = [...chosen];
  return form({
    title: ids.length === 1 ? "Mute alert" : `Mute ${many(ids.length, "alert")}`,
    note: "No notices come in that time. An alert that fires still at its end is told then.",
    action: "Mute",
    fields: [{ name: "seconds", label: "For", type: "select", options: MUTES, value: "3600" }],
    submit: async ({ seconds }) => {
      for (const id of ids) await api("POST", `${pathOf(id)}/mute`, { seconds: Number(seconds) });
      toast(`${many(ids.length, "alert")} ${seconds === "0" ? "no longer muted" : "muted"}.`);
      return true;
    },
  });
}

async function test() {
  const { deliveries } = await api("POST", `${pathOf(chosen[0])}/test`);
  await open({
    title: "Test notices",
    content: [
      deliveries.length
        ? el("ul", { class: "outcomes" }, deliveries.map(({ to, outcome, error }) => el("li", {}, el("strong", {}, to), ` ${outcome}${error ? `: ${error}` : ""}`)))
        : el("p", {}, "This alert has no channels: edit it to add some."),
    ],
  });
  return deliveries;
}

function remove() {
  const ids = [...chosen];
  const names = ids.map((id) => textOf(tableOf("alerts").rows.get(id).cells[0]));
  return confirm({
    title: `Delete ${many(ids.length, "alert")}`,
    effect: names.map((name) => ["Alert", name]),
    submit: async () => {
      for (const id of ids) await api("DELETE", pathOf(id));
      toast(`${many(ids.length, "alert")} deleted.`);
    },
  });
}

const textOf = (cell) => (typeof cell === "string" ? cell : cell.t);

// ---- notifications of this browser

async function notify() {
  if (shows()) stop();
  else if ((await request()) === "granted") toast("This browser shows notifications while a page of Comet is open.");
  tellPermission();
}

function tellPermission() {
  const state = permission();
  const button = document.querySelector("[data-notify]");
  const told = document.querySelector("[data-permission]");
  button.hidden = state in TELLING;
  button.querySelector("[data-notify-text]").textContent = shows() ? "Stop notifications here" : "Show notifications here";
  told.textContent = TELLING[state] ?? "";
  told.hidden = !told.textContent;
}
