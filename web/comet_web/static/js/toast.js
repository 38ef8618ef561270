// Short messages in a status region: what was done, and what was not.

import { el, icon } from "./el.js";

const SHOWN_MAX = 4;
const SHOWN_MS = 6_000; // what went wrong stays until it is closed

export function toast(text, tone = "good") {
  const region = document.getElementById("toasts");
  const close = el("button", { type: "button", class: "plain", "aria-label": "Close this message" }, icon("close"));
  const made = el("div", { class: "toast", dataset: { tone } }, icon(tone === "" ? "info" : tone), el("span", {}, text), close);
  close.addEventListener("click", () => made.remove());
  region.append(made);
  while (region.childElementCount > SHOWN_MAX) region.firstElementChild.remove();
  if (tone !== "bad") leaveLater(made);
  return made;
}

// Not while somebody reads it.
function leaveLater(made) {
  setTimeout(() => (made.matches(":hover, :focus-within") ? leaveLater(made) : made.remove()), SHOWN_MS);
}

// For those who do not see the page: said once, shown nowhere.
export function say(text) {
  document.getElementById("said").textContent = text;
}
