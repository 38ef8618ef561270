// Light or dark: the system's by default. "comet:theme" on document: colours have changed.

import { store, stored } from "./stored.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

// "light", "dark" or "system"
export function theme() {
  return stored("theme") ?? "system";
}

export function setTheme(chosen) {
  store("theme", chosen === "system" ? null : chosen);
  const root = document.documentElement;
  if (chosen === "system") delete root.dataset.theme;
  else root.dataset.theme = chosen;
  changed();
}

// Switches to the other theme; to the system's if that is the same.
export function nextTheme() {
  const seen = theme() === "system" ? (dark.matches ? "dark" : "light") : theme();
  const wanted = seen === "dark" ? "light" : "dark";
  setTheme(wanted === (dark.matches ? "dark" : "light") ? "system" : wanted);
  return wanted;
}

function changed() {
  document.dispatchEvent(new CustomEvent("comet:theme"));
}

dark.addEventListener("change", changed);
