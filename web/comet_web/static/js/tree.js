// A decoded JSON value as an expandable tree. Branches are built when opened, long ones in parts.

import { el } from "./el.js";
import { Exact } from "./exact.js";

const ENTRIES_MAX = 100; // at a time
const TEXT_MAX = 2_000;
const OPEN_MAX = 40; // entries of a branch that is open at first
const DEEP = 2; // levels that are open at first

export function tree(value) {
  return el("div", { class: "tree" }, node(null, value, 0));
}

function node(name, value, depth) {
  if (value === null || typeof value !== "object" || value instanceof Exact) return leaf(name, value);
  const entries = Object.entries(value); // of a list, too
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return el("div", { class: "leaf" }, label(name), el("span", { class: "mark" }, open + close));
  const inside = el("div", { class: "inside" });
  const many = `${entries.length.toLocaleString("en")} ${Array.isArray(value) ? "entries" : "fields"}`;
  const made = el("details", {}, el("summary", {}, label(name), el("span", { class: "mark" }, `${open} ${many} ${close}`)), inside);
  const grow = () => {
    const begin = inside.childElementCount;
    inside.append(...entries.slice(begin, begin + ENTRIES_MAX).map(([key, each]) => node(key, each, depth + 1)));
    const left = entries.length - inside.childElementCount;
    if (left > 0) {
      const more = el("button", { type: "button", class: "button small" }, `${left.toLocaleString("en")} more`);
      more.addEventListener("click", () => {
        more.remove();
        grow();
      });
      inside.append(more);
    }
  };
  made.addEventListener("toggle", () => made.open && !inside.childElementCount && grow());
  if (depth < DEEP && entries.length <= OPEN_MAX) {
    grow();
    made.open = true;
  }
  return made;
}

function label(name) {
  return name === null ? null : [el("span", { class: "name" }, name), ": "];
}

function leaf(name, value) {
  const [kind, text] = worded(value);
  const cut = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}… (${text.length.toLocaleString("en")} characters)` : text;
  return el("div", { class: "leaf" }, label(name), el("span", { class: kind }, cut));
}

function worded(value) {
  if (value === null) return ["null", "null"];
  if (typeof value === "object") return ["number", value.source];
  return [typeof value, typeof value === "string" ? JSON.stringify(value) : String(value)];
}
