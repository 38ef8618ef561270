// Copies a text, and shows the result.

import { toast } from "./toast.js";

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser blocks copying; select the text instead", "warn");
  }
}
