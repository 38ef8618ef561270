// The page of quotes: flashing prices, pins and alerts stored in this browser. Its charts are in quote_panes.js.

import { on } from "../actions.js";
import { form } from "../dialog.js";
import { el } from "../el.js";
import { withQuery } from "../navigate.js";
import { Panes } from "../quote_panes.js";
import { store, stored } from "../stored.js";
import { toast } from "../toast.js";
import { put as putWatched, recall } from "../watchlist.js";

const PINS_MAX = 12;
const ALERTS_MAX = 50;
const COLUMN = { last: 1, percent: 3 };
const text = (cell) => (typeof cell === "string" ? cell : (cell?.t ?? ""));
const value = (cell) => (typeof cell === "string" ? Number(cell.replaceAll(",", "")) : (cell?.v ?? NaN));

let pins = stored("quotes.pins", []);
let alerts = stored("quotes.alerts", []); // {symbol, over: bool, price}
let before = new Map(); // the last shown price of each symbol
let now = null; // the document
let panes = null;

export function start({ live }) {
  panes = new Panes(live);
  recall();
  on("pin", pin);
  on("alert", alertOf);
  document.addEventListener("comet:document", ({ detail }) => show(detail));
  mark(chosen());
  if (live.document) show(live.document); // it came before this script
}

function chosen() {
  return document.querySelector('[data-field="symbol"]').textContent;
}

function show(found) {
  now = found;
  const kind = text(found.fields.kind);
  for (const node of document.querySelectorAll("[data-when-kind]")) node.hidden = node.dataset.whenKind !== kind;
  analytics(found.fields);
  const { rows } = found.tables.watchlist;
  panes.show(found);
  putWatched(found, text(found.fields.symbol));
  flash(rows);
  watch(rows);
  mark(text(found.fields.symbol));
  const title = `Quotes of ${text(found.fields.symbol)} · ${document.title.split(" · ").slice(1).join(" · ")}`;
  if (document.title !== title) document.title = title;
  pinned(rows);
}

// ---- results of a job: greyed if late

function analytics(fields) {
  const made = text(fields.analytics);
  for (const node of document.querySelectorAll("[data-when-analytics]")) node.hidden = node.dataset.whenAnalytics !== made;
  const late = made === "yes" ? text(fields["late-results"]).split(" ") : [];
  for (const node of document.querySelectorAll("[data-result]")) {
    const { result } = node.dataset;
    if (node.hasAttribute("data-late") === late.includes(result)) continue;
    node.toggleAttribute("data-late");
    if (result === "lines") document.dispatchEvent(new CustomEvent("comet:theme")); // the chart updates its colours
  }
}

// ---- rows

function rowOf(symbol) {
  return document.querySelector(`[data-table="watchlist"] tr[data-key="${CSS.escape(symbol)}"]`);
}

function flash(rows) {
  const after = new Map();
  const moved = [];
  for (const [symbol, cells] of Object.entries(rows)) {
    const price = value(cells[COLUMN.last]);
    const was = before.get(symbol);
    after.set(symbol, price);
    if (was === undefined || was === price || Number.isNaN(price)) continue;
    const cell = rowOf(symbol)?.cells[COLUMN.last];
    if (!cell) continue;
    cell.classList.remove("moved-up", "moved-down");
    moved.push([cell, price > was ? "moved-up" : "moved-down"]);
  }
  if (moved.length) void document.body.offsetWidth; // once for all, so that the same animation restarts
  for (const [cell, how] of moved) cell.classList.add(how);
  before = after;
}

function mark(symbol) {
  for (const row of document.querySelectorAll('[data-table="watchlist"] tr[data-chosen]')) {
    if (row.dataset.key !== symbol) delete row.dataset.chosen;
  }
  const row = rowOf(symbol);
  if (row) row.dataset.chosen = "";
  const button = document.querySelector('[data-action="pin"]');
  const is = pins.includes(symbol);
  button.setAttribute("aria-pressed", String(is));
  button.querySelector("span").textContent = is ? "Pinned" : "Pin";
  const mine = alerts.filter((each) => each.symbol === symbol).length;
  document.querySelector("[data-alerts]").textContent = mine ? `Alert (${mine})` : "Alert";
}

// ---- pins

function pin() {
  const symbol = chosen();
  if (pins.includes(symbol)) pins = pins.filter((each) => each !== symbol);
  else if (pins.length < PINS_MAX) pins = [...pins, symbol];
  else return void toast(`At most ${PINS_MAX} symbols can be pinned.`, "warn");
  store("quotes.pins", pins);
  mark(symbol);
  if (now) pinned(now.tables.watchlist.rows);
}

function pinned(rows) {
  const strip = document.querySelector("[data-pins]");
  strip.hidden = !pins.length;
  const symbol = chosen();
  const shown = new Map([...strip.children].map((node) => [node.dataset.pin, node]));
  for (const each of pins) {
    let node = shown.get(each);
    shown.delete(each);
    if (!node) {
      node = el("a", { dataset: { pin: each, soft: "" } }, el("b", {}, each), el("span"), el("span"));
      strip.append(node);
    }
    node.href = withQuery({ symbol: each });
    if (each === symbol) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
    const cells = rows[each];
    if (!cells) continue; // filtered out or not quoted: the last shown price stays
    const [, last, change] = node.children;
    last.textContent = text(cells[COLUMN.last]);
    const percent = cells[COLUMN.percent];
    change.textContent = Number.isNaN(value(percent)) ? "" : `${text(percent)} %`;
    change.dataset.tone = percent?.c ?? "";
  }
  for (const node of shown.values()) node.remove();
}

// ---- alerts: checked with every document, shown once

async function alertOf() {
  const symbol = chosen();
  const price = before.get(symbol) ?? NaN;
  const mine = alerts.filter((each) => each.symbol === symbol);
  const removals = mine.map((each) => [JSON.stringify(each), `Remove: ${described(each)}`]);
  const done = await form({
    title: `Alert for ${symbol}`,
    note: "Shown once, while this page is open and the symbol is listed; then deleted.",
    action: "Save",
    fields: [
      ...(removals.length ? [{ name: "act", label: "Action", type: "select", options: [["add", "Add an alert"], ...removals] }] : []),
      { name: "over", label: "When the price is", type: "select", options: [["over", "at or above"], ["under", "at or below"]] },
      { name: "price", label: "Price", type: "number", step: "any", value: Number.isNaN(price) ? "" : price, required: true },
    ],
    submit: async (values) => values,
  });
  if (!done) return;
  if (done.act && done.act !== "add") alerts = alerts.filter((each) => JSON.stringify(each) !== done.act);
  else alerts = [...alerts, { symbol, over: done.over === "over", price: Number(done.price) }].slice(-ALERTS_MAX);
  store("quotes.alerts", alerts);
  mark(symbol);
}

const described = ({ symbol, over, price }) => `${symbol} ${over ? "at or above" : "at or below"} ${price}`;

function watch(rows) {
  const fired = alerts.filter(({ symbol, over, price }) => {
    const last = rows[symbol] ? value(rows[symbol][COLUMN.last]) : NaN;
    return over ? last >= price : last <= price;
  });
  if (!fired.length) return;
  alerts = alerts.filter((each) => !fired.includes(each));
  store("quotes.alerts", alerts);
  for (const each of fired) toast(`${described(each)}: ${text(rows[each.symbol][COLUMN.last])}`, "warn");
}
