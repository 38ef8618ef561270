// Settings of a topic, edited in place: changes are sent after a review that shows the records they delete.

import { on } from "../actions.js";
import { api, Problem } from "../api.js";
import { confirm } from "../dialog.js";
import { el } from "../el.js";
import { read, sent, setting, write } from "../settings.js";
import { store, stored } from "../stored.js";
import { toast } from "../toast.js";
import { attach } from "../topic_header.js";
import { many, whole } from "../words.js";

const changes = new Map(); // name -> value, of changed settings
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

function edit(row) {
  const name = row.dataset.setting;
  const rule = setting(name);
  const cell = row.querySelector(".set");
  const text = write(name, row.dataset.value);
  const problem = el("div", { class: "problem", id: `${name}-problem`, role: "status" });
  const shared = { "aria-label": name, "aria-describedby": problem.id };
  const input = rule.options
    ? el("select", shared, rule.options.map((option) => el("option", { value: option, selected: option === text }, option)))
    : el("input", { type: "text", ...shared, value: text, autocomplete: "off", spellcheck: "false" });
  for (const child of cell.children) child.hidden = true;
  const usual = row.dataset.default !== row.dataset.value && el("button", { type: "button", class: "button small" }, "Default");
  cell.append(el("span", { dataset: { editor: "" } }, input, " ", usual, problem));
  row.dataset.edited = "";
  input.addEventListener("input", () => take(row, input, problem));
  if (usual) {
    usual.addEventListener("click", () => {
      input.value = write(name, row.dataset.default);
      take(row, input, problem);
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
  const [value, text] = read(name, input.value);
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
  const path = `/v1/topics/${encodeURIComponent(topic)}`;
  const body = Object.fromEntries([...changes].map(([name, value]) => [name, sent(name, value)]));
  const before = Object.fromEntries(rows().map((row) => [row.dataset.setting, row.dataset.value]));
  let found;
  try {
    found = await api("PATCH", `${path}?dry_run=true`, body);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return void (document.querySelector("[data-changes-text]").textContent = `${error.detail} (request ${error.request_id})`);
  }
  const destroyed = Number(found.records);
  const least = found.complete ? "" : "at least ";
  const losing = destroyed || least ? `${least}${whole(destroyed)} deleted permanently` : "none deleted";
  const done = await confirm({
    title: `Change settings of ${topic}`,
    effect: [...found.changed.map((name) => [name, `${write(name, before[name])} → ${write(name, found.after[name])}`]), ["Records", losing]],
    action: "Save",
    danger: destroyed > 0,
    type: destroyed ? topic : "",
    submit: () => api("PATCH", path, body),
  });
  if (!done) return;
  changes.clear();
  store("toast", `${many(done.changed.length, "setting")} of ${topic} saved.`);
  location.reload();
}
