// The page of one group: reset of committed offsets, delete; both require a group without members.

import { on } from "../actions.js";
import { call, confirmAct, texts } from "../acts.js";
import { api } from "../api.js";
import { field } from "../dialog.js";
import { el, root } from "../el.js";
import { rehearse } from "../rehearse.js";
import { toast } from "../toast.js";
import { many, whole } from "../words.js";

const ROWS_MAX = 200; // of a dry run that are shown
const TARGETS = [
  ["earliest", "the earliest record"],
  ["latest", "the latest record"],
  ["time", "a time"],
  ["ago", "a duration ago"],
  ["shift", "shifted by a number of records"],
  ["offsets", "offsets per partition"],
];

export function start() {
  on("reset-group", async (button, { group }) => reset(group));
  on("delete-group", async (button, { group }) => (await remove(group)) && location.assign(`${root}/groups`));
  document.addEventListener("comet:document", hold);
  hold();
}

// Buttons give the reason why offsets cannot be reset, or the group deleted, now.
function hold() {
  const held = document.querySelector("[data-field=held]").textContent;
  document.querySelector("[data-held]").hidden = !held;
  refuse("reset-group", held);
  refuse("delete-group", document.querySelector("[data-field=delete_held]").textContent);
}

function refuse(action, reason) {
  const button = document.querySelector(`[data-action=${action}]`);
  const refusal = reason && `is not possible: ${reason}`;
  if (reason) button.dataset.refusal = refusal;
  else delete button.dataset.refusal;
  button.setAttribute("aria-disabled", String(Boolean(reason)));
  button.title = reason && `${button.textContent.trim()} ${refusal}`;
}

// ---- reset of committed offsets

async function reset(group) {
  const found = await api("GET", `/v1/groups/${encodeURIComponent(group)}`);
  const topics = [...new Set(found.partitions.map((one) => one.topic))];
  const fields = [
    field({ name: "to", label: "Reset to", type: "select", options: TARGETS }),
    field({ name: "time", label: "Time", type: "datetime-local", step: "1", value: local(new Date()), help: "In your time zone." }),
    field({ name: "ago", label: "Duration", value: "15m", placeholder: "15m", help: "30s, 15m, 2h, 7d", spellcheck: "false" }),
    field({ name: "shift", label: "Records", type: "number", value: "-1000", help: "Negative moves back: records are read again." }),
    field({
      name: "offsets", label: "Offsets", type: "textarea", rows: Math.min(10, Math.max(3, found.partitions.length)),
      value: found.partitions.map((one) => `${one.topic} ${one.partition} ${one.committed ?? one.log_start}`).join("\n"),
      help: "Topic, partition, offset; one per line.",
    }),
    field({ name: "topic", label: "Topic", type: "select", options: [["", "all"], ...topics.map((name) => [name, name])] }),
  ];
  const nodes = Object.fromEntries(fields.map((each) => [each.name, each.node]));
  await rehearse({
    ...texts("resetGroup", { group }),
    fields,
    arrange: ({ to }) => {
      for (const name of ["time", "ago", "shift", "offsets"]) nodes[name].hidden = to !== name;
      nodes.topic.hidden = to === "offsets" || topics.length < 2;
    },
    plan: (values) => (complete(values) ? call("resetGroup", { group }, body(values), { dryRun: true }) : null),
    show: changes,
    does: (plan) => plan.partitions.length > 0,
    submit: async (values) => {
      const done = await call("resetGroup", { group }, body(values));
      toast(`Offsets of ${group} reset in ${many(done.partitions.length, "partition")}.`);
      return done;
    },
  });
}

function complete(values) {
  return values.to !== "offsets" ? values[values.to] !== "" : values.offsets.trim() !== "";
}

function body({ to, time, ago, shift, offsets, topic }) {
  if (to === "offsets") return { offsets: offsets.trim().split("\n").map(offsetOf) };
  const some = topic ? { topics: [topic] } : {};
  if (to === "shift") return { shift, ...some };
  return { to: to === "time" ? instant(time) : to === "ago" ? `-${ago.replace(/^-/, "")}` : to, ...some };
}

function offsetOf(line) {
  const [topic, partition, offset] = line.trim().split(/\s+/);
  return { topic, partition: Number(partition), offset: offset ?? "" };
}

// A time for the field, and one for the API.
function local(date) {
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function instant(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text : date.toISOString();
}

function changes(plan) {
  if (!plan.partitions.length) return el("p", { class: "muted" }, "No committed offsets would change.");
  const head = ["Topic", "Partition", "Before", "After", "Change", ""];
  const cells = (one) => [
    el("td", {}, one.topic),
    el("td", { class: "n" }, one.partition),
    el("td", { class: "n" }, one.before === null ? "never" : whole(one.before)),
    el("td", { class: "n" }, whole(one.after)),
    el("td", { class: "n" }, change(Number(one.skipped))),
    el("td", { class: "wrap" }, one.note),
  ];
  const rows = plan.partitions.slice(0, ROWS_MAX).map((one) => el("tr", {}, cells(one)));
  const more = plan.partitions.length - rows.length;
  return [
    el("p", {}, el("b", {}, `${many(plan.skipped, "record")} skipped, ${whole(plan.repeated)} read again`)),
    el(
      "div",
      { class: "frame", tabindex: "0", role: "region", "aria-label": "What would change" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, head.map((text, index) => el("th", { scope: "col", class: index > 0 && index < 5 ? "n" : "" }, text)))),
        el("tbody", {}, rows),
      ),
    ),
    more > 0 && el("p", { class: "muted" }, `and ${many(more, "more partition")}`),
  ].filter(Boolean);
}

const change = (skipped) => (skipped > 0 ? `skips ${whole(skipped)}` : skipped < 0 ? `repeats ${whole(-skipped)}` : "none");

// ---- delete

function remove(group) {
  return confirmAct("deleteGroup", { group }, {
    show: ({ offsets, lag }) => [
      ["Committed offsets", whole(offsets)],
      ["Lag", whole(lag)],
    ],
    done: () => toast(`Group ${group} deleted.`),
  });
}
