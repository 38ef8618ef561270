// Writes on the condition of a revision, in a dialog. If another client was faster nothing is written: the dialog says what
// is there now, and goes on with it on request.

import { el } from "./el.js";

export const conflictRegion = () => el("div", { class: "notice conflict", role: "alert", dataset: { tone: "warn" }, hidden: true });

// The headers of the condition: "always", "absent" (there is nothing yet), or a revision.
export const conditionOf = (expected) =>
  expected === "always" ? {} : expected === "absent" ? { "if-none-match": "*" } : { "if-match": `"${expected}"` };

// Runs a write. After a mismatch of revisions the dialog stays open with what `read` resolves to: {sentence, choices},
// choices [[label, act], …], in the order of likelihood.
export async function attempt(region, write, read) {
  region.hidden = true;
  try {
    return await write();
  } catch (error) {
    if (error.code !== "REVISION_MISMATCH") throw error;
    show(region, await read(error));
    throw Object.assign(error, { shown: true });
  }
}

function show(region, { sentence, choices }) {
  const buttons = choices.map(([label, act]) =>
    el("button", { type: "button", class: "button small", onclick: () => {
      region.hidden = true;
      act();
    } }, label),
  );
  region.replaceChildren(el("span", {}, "Nothing was written. ", sentence), el("span", { class: "choices" }, buttons));
  region.hidden = false;
  buttons[0]?.focus();
  region.scrollIntoView({ block: "nearest" });
}
