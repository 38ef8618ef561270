// Shows a document on the page: fields, tables, charts. Page scripts get it by "comet:document". Charts below
// [data-own-charts] are updated by the script of their page.

import { fill } from "./cell.js";
import { Chart } from "./chart.js";
import { el } from "./el.js";
import { Table } from "./table.js";

const tables = new Map(); // by their section
const charts = new Map(); // by their figure

export function put(shown, fresh) {
  for (const node of document.querySelectorAll("[data-field]")) fill(node, shown.fields[node.dataset.field]);
  for (const section of document.querySelectorAll("[data-table][data-main]")) {
    const table = shown.tables[section.dataset.table];
    if (!table) continue;
    if (!tables.has(section)) tables.set(section, new Table(section));
    tables.get(section).put(table, fresh);
  }
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = shown.charts[figure.dataset.chart];
    if (chart && !figure.closest("[data-own-charts]")) chartOf(figure, chart).update(chart);
  }
  document.getElementById("main").removeAttribute("aria-busy");
}

function chartOf(figure, { kind, unit, names }) {
  if (!charts.has(figure)) charts.set(figure, new Chart(figure.querySelector("canvas"), { kind, unit, names }));
  return charts.get(figure);
}

// The rows of a table on the page, for scripts of pages: tableOf("topics").picked is a Set of keys.
export function tableOf(id) {
  return tables.get(document.querySelector(`[data-table="${CSS.escape(id)}"]`));
}

// A chart on the page, for scripts that add to its document; undefined before it is shown.
export function chartAt(id) {
  return charts.get(document.querySelector(`[data-chart="${CSS.escape(id)}"]`));
}

// The same, made if need be.
export function chartFor(id, looks) {
  return chartOf(document.querySelector(`[data-chart="${CSS.escape(id)}"]`), looks);
}

// Shows why the page is not updated, above the last known content.
export function putProblem(problem) {
  const main = document.getElementById("main");
  const shown = main.querySelector(":scope > [data-page-problem]");
  if (!problem) return void shown?.remove();
  const parts = [problem.title, problem.detail, problem.request_id && `request ${problem.request_id}`].filter(Boolean);
  const text = parts.join(" · ");
  if (shown?.textContent === text) return;
  shown?.remove();
  const note = el("p", { class: "notice", role: "alert", dataset: { pageProblem: "", tone: "bad" } }, text);
  main.querySelector(":scope > .head").after(note);
}
