// A dialog with a dry run of its call, repeated when a field changes. The action is enabled only while the dry run
// matches the fields.

import { Problem } from "./api.js";
import { open } from "./dialog.js";
import { el } from "./el.js";

const TYPING_MS = 300;

// Resolves to the result of `submit(values)`, or null. `fields` are of `dialog.field`; `arrange(values)` may hide some.
// `plan(values)` fetches the dry run, throws Problem, or returns null if a value is missing; `show(plan)` makes nodes of
// it; `does(plan)` tells whether it changes anything.
export function rehearse({ title, note = "", fields, arrange = () => {}, plan, show, does = () => true, submit, action, danger = false, wide = true }) {
  const effect = el("div", { class: "rehearsed", "aria-live": "polite" });
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.read()]));
  let shown = null; // the values of the dry run shown, as text; null: none
  let ready = false;
  let latest = 0;
  let timer = 0;

  const settled = () => effect.dispatchEvent(new Event("input", { bubbles: true })); // the dialog checks whether it is ready
  const refresh = async () => {
    const mine = (latest += 1);
    const given = values();
    ready = false;
    effect.setAttribute("aria-busy", "true");
    try {
      const found = await plan(given);
      if (mine !== latest) return;
      shown = found === null ? null : JSON.stringify(given);
      effect.replaceChildren(...(found === null ? [] : [show(found)].flat()));
      ready = found !== null && does(found);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (mine !== latest) return; // a later dry run replaces it
      shown = null;
      effect.replaceChildren(problem(error));
    } finally {
      if (mine === latest) effect.removeAttribute("aria-busy");
    }
    settled();
  };
  const changed = (event) => {
    if (event.target === effect) return;
    arrange(values());
    ready = false;
    clearTimeout(timer);
    timer = setTimeout(refresh, TYPING_MS);
  };
  const content = el(
    "div",
    { class: "rehearsal" },
    note && el("p", { class: "help" }, note),
    fields.length > 0 && el("div", { class: "fields" }, fields.map((each) => each.node)),
    effect,
  );
  content.addEventListener("input", changed, true);
  arrange(values());
  const done = open({
    title,
    content,
    action,
    danger,
    wide,
    ready: () => ready && shown === JSON.stringify(values()),
    submit: () => submit(values()),
  });
  refresh();
  return done.finally(() => {
    clearTimeout(timer);
    latest += 1;
  });
}

function problem(error) {
  const parts = [el("b", {}, error.title), el("span", {}, error.detail)];
  if (error.hint) parts.push(el("span", {}, error.hint));
  if (error.request_id) parts.push(el("code", {}, `request ${error.request_id}`));
  return el("div", { class: "wrong", role: "alert" }, parts);
}
