// Short messages in a status region: results and errors.

import { el, icon } from "./el.js";

const SHOWN_MAX = 4;
const SHOWN_MS = 6_000; // errors stay until closed

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

// Not while the pointer or the focus is on it.
function leaveLater(made) {
  setTimeout(() => (made.matches(":hover, :focus-within") ? leaveLater(made) : made.remove()), SHOWN_MS);
}

// Announces a text to screen readers, without showing it.
export function say(text) {
  document.getElementById("announcer").textContent = text;
}
