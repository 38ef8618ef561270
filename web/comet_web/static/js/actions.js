// Buttons with actions: `data-action` names the action, and a module registers its handler by `on`.

import { Problem } from "./api.js";
import { toast } from "./toast.js";

const handlers = new Map();

// `handler(button, data)`; the button is busy until it resolves, and errors are shown.
export function on(name, handler) {
  handlers.set(name, handler);
}

export async function act(button) {
  if (button.dataset.refusal) return void toast(`${button.textContent.trim()} ${button.dataset.refusal}`, "warn");
  if (button.getAttribute("aria-busy") === "true") return;
  const handler = handlers.get(button.dataset.action);
  if (!handler) return;
  button.setAttribute("aria-busy", "true");
  try {
    await handler(button, button.dataset);
  } catch (error) {
    showError(error);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

export function showError(error) {
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
