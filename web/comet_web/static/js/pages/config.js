// Settings of a topic, edited in place: changes are sent after a review that shows the records they delete.

import { on } from "../actions.js";
import { call, texts } from "../acts.js";
import { Problem } from "../api.js";
import { confirm } from "../dialog.js";
import { el } from "../el.js";
import { read, topicSettings, write } from "../settings.js";
import { store, stored } from "../stored.js";
import { toast } from "../toast.js";
import { attach } from "../topic_header.js";
import { many, whole } from "../words.js";

const UNSET = null;
const changes = new Map(); // name -> value, or UNSET for the cluster's default, of changed settings
let rules = new Map(); // name -> rule
const wrong = new Set(); // names

export function start() {
  attach();
  const text = stored("toast");
  if (text) {
    store("toast", null);
    toast(text);
  }
  on("edit-setting", (button) => edit(button.closest("[data-setting]")));
  on("discard-settings", () => [...document.querySelectorAll("[data-edited]")].forEach(restore));
  on("review-settings", review);
  addEventListener("beforeunload", (event) => changes.size && event.preventDefault());
}

const rows = () => [...document.querySelectorAll("[data-setting]")];

async function edit(row) {
  const name = row.dataset.setting;
  if (!rules.size) {
    try {
      ({ rules } = await topicSettings());
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return void toast(`${error.title}: ${error.detail}`, "warn");
    }
  }
  if ("edited" in row.dataset) return; // a second click while the rules came
  const rule = rules.get(name);
  const cell = row.querySelector(".set");
  const text = write(rule, row.dataset.value);
  const problem = el("div", { class: "problem", id: `${name}-problem`, role: "status" });
  const shared = { "aria-label": name, "aria-describedby": problem.id };
  const input = rule.words.length
    ? el("select", shared, rule.words.map((option) => el("option", { value: option, selected: option === text }, option)))
    : el("input", { type: "text", ...shared, value: text, autocomplete: "off", spellcheck: "false" });
  for (const child of cell.children) child.hidden = true;
  const differs = row.dataset.source === "topic" || row.dataset.default !== row.dataset.value;
  const usual = differs && el("button", { type: "button", class: "button small" }, "Default");
  cell.append(el("span", { dataset: { editor: "" } }, input, " ", usual, problem));
  row.dataset.edited = "";
  input.addEventListener("input", () => take(row, input, problem));
  if (usual) {
    usual.addEventListener("click", () => {
      input.value = write(rule, row.dataset.default);
      take(row, input, problem);
      changes.set(name, UNSET);
      summarize();
    });
  }
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") document.querySelector("[data-action=review-settings]").click();
    if (event.key === "Escape") {
      event.stopPropagation();
      restore(row);
      row.querySelector("[data-action=edit-setting]").focus();
    }
  });
  input.focus();
  input.select?.();
  summarize();
}

function take(row, input, problem) {
  const name = row.dataset.setting;
  const [value, text] = read(rules.get(name), input.value);
  problem.textContent = text;
  if (text) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  if (text) wrong.add(name);
  else wrong.delete(name);
  if (text || String(value) === row.dataset.value) changes.delete(name);
  else changes.set(name, value);
  summarize();
}

function restore(row) {
  row.querySelector("[data-editor]")?.remove();
  for (const child of row.querySelector(".set").children) child.hidden = false;
  delete row.dataset.edited;
  changes.delete(row.dataset.setting);
  wrong.delete(row.dataset.setting);
  summarize();
}

function summarize() {
  const bar = document.querySelector("[data-changes]");
  bar.hidden = !document.querySelector("[data-edited]");
  const count = `${many(changes.size, "setting")} changed`;
  bar.querySelector("[data-changes-text]").textContent = wrong.size ? `Invalid: ${[...wrong].join(", ")}` : changes.size ? count : "No changes yet";
  bar.querySelector("[data-action=review-settings]").disabled = Boolean(wrong.size) || !changes.size;
}

async function review() {
  if (!changes.size || wrong.size) return;
  const topic = document.querySelector("[data-topic]").dataset.topic;
  const given = [...changes].filter(([, value]) => value !== UNSET);
  const unset = [...changes.keys()].filter((name) => changes.get(name) === UNSET);
  const body = { ...Object.fromEntries(given), unset };
  const before = Object.fromEntries(rows().map((row) => [row.dataset.setting, row.dataset.value]));
  let found;
  try {
    found = await call("alterTopic", { topic }, body, { dryRun: true });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return void (document.querySelector("[data-changes-text]").textContent = `${error.detail} (request ${error.request_id})`);
  }
  const destroyed = Number(found.records);
  const least = found.complete ? "" : "at least ";
  const losing = destroyed || least ? `${least}${whole(destroyed)} deleted permanently` : "none deleted";
  const done = await confirm({
    ...texts("alterTopic", { topic }),
    effect: [...found.changed.map((name) => [name, shown(name, before[name], found.after[name])]), ["Records", losing]],
    ...(destroyed || least ? {} : { danger: false, type: "" }),
    submit: () => call("alterTopic", { topic }, body),
  });
  if (!done) return;
  changes.clear();
  store("toast", `${many(done.changed.length, "setting")} of ${topic} saved.`);
  location.reload();
}

function shown(name, before, after) {
  const rule = rules.get(name);
  return `${write(rule, before)} → ${write(rule, after)}${changes.get(name) === UNSET ? ", the default" : ""}`;
}
