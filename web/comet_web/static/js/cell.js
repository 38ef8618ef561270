// Shows a cell in a node: its text or link, then its bar, then its sparkline, as `inside` in templates/components.html
// does. Changes only what differs.

import { el, root, svg } from "./el.js";
import { sparkPath } from "./spark.js";

export function fill(node, cell, link = "") {
  const it = typeof cell === "string" ? { t: cell } : (cell ?? { t: "" });
  mark(node, "data-tone", it.c ?? "");
  mark(node, "title", it.h ?? "");
  words(node, it.t, it.a || link);
  bar(node, it.b);
  spark(node, it.s);
}

export function textOf(cell) {
  return typeof cell === "string" ? cell : (cell?.t ?? "");
}

function mark(node, name, value) {
  if ((node.getAttribute(name) ?? "") === value) return;
  if (value) node.setAttribute(name, value);
  else node.removeAttribute(name);
}

function words(node, text, href) {
  const first = node.firstChild;
  if (href && href.startsWith("/")) {
    const to = root + href;
    if (first?.nodeName === "A") {
      if (first.getAttribute("href") !== to) first.setAttribute("href", to);
      if (first.textContent !== text) first.textContent = text;
    } else replaceFirst(node, first, el("a", { href: to }, text));
  } else if (first?.nodeType === Node.TEXT_NODE) {
    if (first.data !== text) first.data = text;
  } else replaceFirst(node, first, document.createTextNode(text));
}

function replaceFirst(node, first, made) {
  if (first && (first.nodeName === "A" || first.nodeType === Node.TEXT_NODE)) first.replaceWith(made);
  else node.prepend(made);
}

function bar(node, share) {
  let shown = node.querySelector(":scope > svg.bar");
  if (share === undefined) return void shown?.remove();
  if (!shown) {
    shown = svg("svg", { class: "bar", "aria-hidden": "true" }, svg("rect", { height: "100%" }));
    node.insertBefore(shown, node.querySelector(":scope > svg.spark"));
  }
  const width = `${(100 * share).toFixed(2)}%`;
  const rect = shown.firstElementChild;
  if (rect.getAttribute("width") !== width) rect.setAttribute("width", width);
}

function spark(node, values) {
  let shown = node.querySelector(":scope > svg.spark");
  if (values === undefined) return void shown?.remove();
  if (!shown) {
    const box = { class: "spark", "aria-hidden": "true", viewBox: "0 0 120 24", preserveAspectRatio: "none" };
    shown = svg("svg", box, svg("path"));
    node.append(shown);
  }
  const path = sparkPath(values);
  if (shown.firstElementChild.getAttribute("d") !== path) shown.firstElementChild.setAttribute("d", path);
}
