// The page of one dead-letter topic: view and edit a dead letter, redrive or discard selected ones or all.

import { on, showError } from "../actions.js";
import { tableOf } from "../bind.js";
import { el, icon } from "../el.js";
import { toast } from "../toast.js";

const topic = document.querySelector("h1").textContent;
const UPDATES_MAX = 10;
const COLUMNS = [...document.querySelectorAll("[data-table=dead_letters] th[data-column]")].map((head) => head.dataset.column);
const FACTS = [["state", "State"], ["reason", "Reason"], ["group", "Group"], ["source", "Source"], ["attempts", "Attempts"], ["became", "Redriven to"]];
let chosen = [];

const settle = () => import("../settle.js"); // with its dialogs, when one opens

export function start() {
  document.addEventListener("comet:selection", ({ detail }) => detail.table === "dead_letters" && choose(detail.keys));
  document.addEventListener("comet:row", chosenRow);
  document.addEventListener("click", chosenLink);
  document.addEventListener("comet:document", meant);
  document.addEventListener("comet:settled", showNext);
  on("redrive-all", async () => (await settle()).redrive(topic, { filter: filter() }, about()));
  on("discard-all", async () => (await settle()).discard(topic, { filter: filter() }, about()));
  on("redrive-chosen", async () => (await settle()).redrive(topic, { dead_letters: chosen }, textOf(chosen)));
  on("discard-chosen", async () => (await settle()).discard(topic, { dead_letters: chosen }, textOf(chosen)));
  on("edit-letter", async () => (await settle()).edit(topic, chosen[0]));
  choose([...(tableOf("dead_letters")?.picked ?? [])]); // rows selected before this script ran
  meant();
}

// The filter of the address, as the API takes it.
function filter() {
  const query = new URLSearchParams(location.search);
  const names = [["group", "group"], ["cause", "cause"], ["from", "topic"]];
  return Object.fromEntries(names.filter(([name]) => query.get(name)).map(([name, member]) => [member, query.get(name)]));
}

function about() {
  const { group, cause, topic: from } = filter();
  const parts = [group && `of group ${group}`, cause && `with reason “${cause}”`, from && `from ${from}`].filter(Boolean);
  const typed = new URLSearchParams(location.search).get("filter");
  return `All pending dead letters ${parts.join(" ") || `in ${topic}`}${typed ? "; the table's filter is not applied" : ""}`;
}

// Labels the buttons by whether a filter is set.
function meant() {
  const few = Object.keys(filter()).length > 0;
  for (const [action, verb] of [["redrive-all", "Redrive"], ["discard-all", "Discard"]]) {
    const button = document.querySelector(`[data-action=${action}]`);
    button.lastChild.textContent = few ? `${verb} filtered` : `${verb} all pending`;
  }
}

function choose(keys) {
  chosen = keys.map(idOf);
  const shown = document.querySelector("[data-chosen]");
  shown.hidden = !chosen.length;
  shown.querySelector("[data-chosen-text]").textContent = `${chosen.length} selected`;
  shown.querySelector("[data-action=edit-letter]").hidden = chosen.length !== 1;
}

function idOf(key) {
  const [partition, offset] = key.split("/");
  return { partition: Number(partition), offset };
}

const textOf = (ids) => (ids.length === 1 ? `Dead letter ${ids[0].partition} / ${ids[0].offset}` : `${ids.length} selected dead letters`);

// A click on a row opens the panel of its record. Without scripts its link leads to the page of records.
function chosenRow(event) {
  if (event.target.closest("[data-table]").dataset.table !== "dead_letters") return;
  event.preventDefault();
  openRow(event.target.closest("tr"));
}

function chosenLink(event) {
  const link = event.target.closest?.("[data-table=dead_letters] .pick + td a");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  openRow(link.closest("tr"));
}

async function openRow(row) {
  const [{ hide, show }, { discard, edit, redrive }] = await Promise.all([import("../record.js"), settle()]);
  const id = idOf(row.dataset.key);
  const cells = Object.fromEntries([...row.querySelectorAll("td:not(.pick)")].map((cell, at) => [COLUMNS[at], cell.textContent]));
  const facts = FACTS.filter(([name]) => cells[name]).map(([name, label]) => [label, cells[name]]);
  const act = (label, name, handler) => {
    const refusal = document.querySelector("[data-action=edit-letter]").dataset.refusal;
    const run = () => (refusal ? toast(`${label} ${refusal}`, "warn") : handler().then((begun) => begun && hide(), showError));
    return el("button", { type: "button", class: "button small", onclick: run }, icon(name), label);
  };
  const actions = cells.state === "pending"
    ? [
        act("Edit and redrive", "edit", () => edit(topic, id)),
        act("Redrive", "send", () => redrive(topic, { dead_letters: [id] }, textOf([id]))),
        act("Discard", "trash", () => discard(topic, { dead_letters: [id] }, textOf([id]))),
      ]
    : [];
  show({ topic, ...id }, { from: row.querySelector("a"), facts, actions });
  row.setAttribute("aria-selected", "true");
}

// Shows the user's own changes without a click on "List changed", as they become known.
function showNext() {
  let updates = 0;
  document.addEventListener("comet:document", function next() {
    const button = document.querySelector("[data-table=dead_letters] [data-changed]");
    if (button && !button.hidden) button.click();
    if ((updates += 1) >= UPDATES_MAX) document.removeEventListener("comet:document", next);
  });
}
