// Preferences of this browser: theme and keyboard shortcuts.

import { keysOn, setKeys } from "../keys.js";
import { setTheme, theme } from "../theme.js";
import { say } from "../toast.js";

export function start() {
  document.addEventListener("click", (event) => {
    const choice = event.target.closest?.("[data-theme-choice], [data-keys-choice]");
    if (!choice) return;
    const { themeChoice, keysChoice } = choice.dataset;
    if (themeChoice !== undefined) setTheme(themeChoice);
    else setKeys(keysChoice === "on");
    show();
    say(themeChoice !== undefined ? `Theme: ${choice.textContent}` : `Shortcuts: ${choice.textContent}`);
  });
  document.addEventListener("comet:theme", show);
  show();
}

function show() {
  press("theme", theme());
  press("keys", keysOn() ? "on" : "off");
}

function press(name, chosen) {
  for (const button of document.querySelectorAll(`[data-${name}-choice]`)) {
    button.setAttribute("aria-pressed", String(button.getAttribute(`data-${name}-choice`) === chosen));
  }
}
