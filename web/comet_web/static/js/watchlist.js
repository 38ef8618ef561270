// The symbols of the watchlist, and of the charts beside the first: in the address, so that a link shows the same.
// The watchlist is stored in this browser, too.

import { on } from "./actions.js";
import { textOf } from "./cell.js";
import { el } from "./el.js";
import { live } from "./live.js";
import { here, navigate, withQuery } from "./navigate.js";
import { store, stored } from "./stored.js";
import { toast } from "./toast.js";

const MEMORY = "quotes.watched"; // symbols by topic

const query = () => new URLSearchParams(location.search);
const topic = () => query().get("topic") ?? "";
const list = (text) => text.split(",").filter(Boolean);

let known = []; // all symbols
let watched = [];
let others = []; // of the charts beside the first

// Shows the stored watchlist, unless the address has one.
export function recall() {
  const symbols = stored(MEMORY, {})[topic()];
  if (symbols?.length && !query().has("symbols")) {
    history.replaceState(null, "", withQuery({ symbols: symbols.join(",") }));
    live.watch(here());
  }
  on("watch", () => toggle(document.querySelector('[data-field="symbol"]').textContent));
  on("watch-all", () => watch([]));
  document.querySelector("[data-watch-add]").addEventListener("submit", add);
  for (const box of document.querySelectorAll("[data-also]")) box.addEventListener("change", () => also(box));
}

// Shows a document.
export function put({ fields }, symbol) {
  const all = textOf(fields.symbols);
  if (all !== known.join(",")) {
    known = list(all);
    document.getElementById("quote-symbols").replaceChildren(...known.map((value) => el("option", { value })));
  }
  watched = list(textOf(fields.watched));
  const inList = watched.includes(symbol);
  const button = document.querySelector('[data-action="watch"]');
  button.setAttribute("aria-pressed", String(inList));
  button.textContent = inList ? "Remove from list" : "Add to list";
  document.querySelector('[data-action="watch-all"]').hidden = !textOf(fields.watching);
  const panes = Number(textOf(fields.panes)) || 1;
  document.querySelector("[data-panes]").dataset.panes = panes;
  others = [2, 3, 4].slice(0, panes - 1).map((number) => textOf(fields[`symbol-${number}`]));
  for (const box of document.querySelectorAll("[data-also]")) {
    const shown = others[Number(box.dataset.also) - 2] ?? "";
    if (box !== document.activeElement && box.value !== shown) box.value = shown;
  }
}

function watch(symbols) {
  const all = { ...stored(MEMORY, {}), [topic()]: symbols };
  if (!symbols.length) delete all[topic()];
  store(MEMORY, Object.keys(all).length ? all : null);
  navigate(withQuery({ symbols: symbols.join(","), page: null }));
}

function toggle(symbol) {
  if (!watched.length) return; // no document yet
  if (!watched.includes(symbol)) return watch([...watched, symbol]);
  const left = watched.filter((each) => each !== symbol);
  if (left.length) watch(left);
  else toast("The last symbol of the watchlist stays.", "warn");
}

function add(event) {
  event.preventDefault();
  const box = event.target.elements.symbol;
  const symbol = found(box.value);
  if (!symbol) return;
  box.value = "";
  if (watched.includes(symbol)) toast(`${symbol} is in the watchlist.`);
  else watch([...watched, symbol]);
}

function also(box) {
  const symbol = found(box.value);
  if (!symbol) return void (box.value = others[Number(box.dataset.also) - 2] ?? "");
  const symbols = [...others];
  symbols[Number(box.dataset.also) - 2] = symbol;
  navigate(withQuery({ also: symbols.join(",") }));
}

function found(text) {
  const symbol = known.find((each) => each === text.trim()) ?? known.find((each) => each.toUpperCase() === text.trim().toUpperCase());
  if (!symbol) toast(`No quotes of ${text.trim() || "this symbol"} here.`, "warn");
  return symbol;
}
