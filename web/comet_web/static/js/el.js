// Builds elements. A string always becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

// el("div", {class: "card", dataset: {key: "a"}, onclick: f, hidden: true}, "text", another, [more, null])
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) set(made, key, value);
  made.append(...flat(children));
  return made;
}

function set(node, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key === "dataset") Object.assign(node.dataset, value);
  else if (key.startsWith("on") && typeof value === "function") node.addEventListener(key.slice(2), value);
  else if (key === "value" || key === "checked") node[key] = value;
  else node.setAttribute(key === "className" ? "class" : key, value === true ? "" : String(value));
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

const icons = new URL("../icons.svg", import.meta.url).href;

export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true", viewBox: "0 0 16 16" }, svg("use", { href: `${icons}#${name}` }));
}

export const root = document.documentElement.dataset.root ?? "";
