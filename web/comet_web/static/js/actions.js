// Buttons that do something: `data-action` names it, whoever does it registers by `on`.

import { Problem } from "./api.js";
import { toast } from "./toast.js";

const doers = new Map();

// `doer(button, data)`; the button is busy until it is done, and what goes wrong is told.
export function on(name, doer) {
  doers.set(name, doer);
}

export async function act(button) {
  if (button.dataset.refusal) return void toast(`${button.textContent.trim()} ${button.dataset.refusal}`, "warn");
  if (button.getAttribute("aria-busy") === "true") return;
  const doer = doers.get(button.dataset.action);
  if (!doer) return;
  button.setAttribute("aria-busy", "true");
  try {
    await doer(button, button.dataset);
  } catch (error) {
    tell(error);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

export function tell(error) {
  if (error instanceof Problem) {
    const parts = [error.title, error.detail, error.request_id && `request ${error.request_id}`];
    toast(parts.filter(Boolean).join(" · "), "bad");
  } else if (error?.name !== "AbortError") {
    toast(String(error?.message ?? error), "bad");
    throw error;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-action]");
  if (button) act(button);
});
