// Keyboard shortcuts: single keys, inactive in text fields, and switched off on the page About.

import { el } from "./el.js";
import { store, stored } from "./stored.js";

export const keysOn = () => stored("keys", true);
export const setKeys = (on) => store("keys", on);

const SHORTCUTS = [
  [["?"], "Show shortcuts"],
  [["Ctrl", "K"], "Find a page, topic, group, broker or action"],
  [["/"], "Filter"],
  [["g", "o"], "Overview"],
  [["g", "t"], "Topics"],
  [["g", "c"], "Consumer groups"],
  [["g", "d"], "Dead letters"],
  [["g", "b"], "Brokers"],
  [["g", "q"], "Quotes"],
  [["g", "e"], "Alerts"],
  [["g", "s"], "Schedules"],
  [["g", "r"], "Access"],
  [["g", "l"], "Audit log"],
  [["g", "i"], "API"],
  [["g", "a"], "About"],
  [["j"], "Next row"],
  [["k"], "Previous row"],
  [["Enter"], "Open the row"],
  [["["], "Previous tab"],
  [["]"], "Next tab"],
  [["space"], "Pause and resume updates"],
  [["+"], "Zoom in, on a chart"],
  [["-"], "Zoom out, on a chart"],
  [["0"], "Show all, on a chart"],
  [["t"], "Light or dark theme"],
  [["Esc"], "Close"],
];
const SECOND_MS = 1_500; // for the letter after g

let leading = 0; // until when a g counts

export async function showKeys() {
  const there = ([first, then]) => first !== "g" || document.querySelector(`a[data-go="${then}"]`); // of the user's role
  const shown = SHORTCUTS.filter(([keys]) => there(keys)).flatMap(([keys, text]) => [
    el("dt", {}, keys.map((key) => el("kbd", {}, key))),
    el("dd", {}, text),
  ]);
  const off = keysOn() ? [] : [el("p", { class: "notice" }, "Shortcuts are off. Turn them on under About.")];
  const { open } = await import("./dialog.js");
  return open({ title: "Keyboard shortcuts", content: [...off, el("dl", { class: "keys" }, shown)] });
}

// `handlers`: {pause, theme, palette}. Ctrl-K also works in text fields, and cannot be switched off.
export function listen(handlers) {
  const single = {
    "?": showKeys,
    "/": () => focus("[data-filter] input"),
    j: () => step(1),
    k: () => step(-1),
    "[": () => part(-1),
    "]": () => part(1),
    " ": handlers.pause,
    t: handlers.theme,
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return escape(event);
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
      event.preventDefault();
      if (document.querySelector("[data-palette]") && !document.querySelector("dialog[open]")) handlers.palette();
      return;
    }
    if (!keysOn() || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") || types(event.target)) return;
    if (event.key === " " && event.target.closest("button, a, summary, [tabindex='0']")) return;
    const led = performance.now() < leading;
    leading = 0;
    if (led) {
      const link = document.querySelector(`a[data-go="${CSS.escape(event.key)}"]`);
      if (link) return done(event, () => link.click());
    }
    if (event.key === "g") leading = performance.now() + SECOND_MS;
    else if (Object.hasOwn(single, event.key)) done(event, single[event.key]);
  });
}

function done(event, handler) {
  event.preventDefault();
  handler();
}

function types(target) {
  return target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox], [type=radio])");
}

function focus(selector) {
  const found = document.querySelector(selector);
  found?.focus();
  found?.select?.();
}

// The first link of a row has the focus, so that Enter opens it.
function step(by) {
  const table = document.activeElement.closest("[data-table]") ?? document.querySelector('[data-main="true"]') ?? document.querySelector("[data-table]");
  const rows = [...(table?.querySelectorAll("tbody tr") ?? [])];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement.closest("tr"));
  const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  const target = row.querySelector("a[href]") ?? row.querySelector("button, input") ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus();
}

function part(by) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  const at = tabs.findIndex((tab) => tab.hasAttribute("aria-current"));
  tabs[at + by]?.click();
}

function escape(event) {
  const open = document.querySelector("details.chooser[open]");
  if (open) {
    open.open = false;
    open.querySelector("summary").focus();
  } else if (types(event.target) && !event.target.closest("dialog")) {
    event.preventDefault(); // else the field would be emptied while its filter stays active
    event.target.blur();
  }
}
