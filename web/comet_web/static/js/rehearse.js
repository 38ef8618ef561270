// A dialog that shows what would happen before it does: a dry run of the very call, made again whenever a field changes.
// The act can be done only while what is shown is of what the fields say.

import { Problem } from "./api.js";
import { open } from "./dialog.js";
import { el } from "./el.js";

const TYPING_MS = 300;

// Resolves to what `submit(values)` gave, or null. `fields`: of `dialog.field`; `arrange(values)` may hide some of them.
// `plan(values)` fetches the dry run, and raises Problem, or returns null where there is nothing to ask yet; `show(plan)`
// makes nodes of it; `does(plan)` says whether there is anything to do.
export function rehearse({ title, note = "", fields, arrange = () => {}, plan, show, does = () => true, submit, action, danger = false, wide = true }) {
  const effect = el("div", { class: "rehearsed", "aria-live": "polite" });
  const values = () => Object.fromEntries(fields.map((each) => [each.name, each.read()]));
  let shown = null; // what the effect is of, as text; null: of nothing
  let ready = false;
  let asked = 0;
  let timer = 0;

  const settled = () => effect.dispatchEvent(new Event("input", { bubbles: true })); // has the dialog look whether it is ready
  const look = async () => {
    const mine = (asked += 1);
    const given = values();
    ready = false;
    effect.setAttribute("aria-busy", "true");
    try {
      const found = await plan(given);
      if (mine !== asked) return;
      shown = found === null ? null : JSON.stringify(given);
      effect.replaceChildren(...(found === null ? [] : [show(found)].flat()));
      ready = found !== null && does(found);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (mine !== asked) return; // nobody waits for it any more
      shown = null;
      effect.replaceChildren(problem(error));
    } finally {
      if (mine === asked) effect.removeAttribute("aria-busy");
    }
    settled();
  };
  const changed = (event) => {
    if (event.target === effect) return;
    arrange(values());
    ready = false;
    clearTimeout(timer);
    timer = setTimeout(look, TYPING_MS);
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
  look();
  return done.finally(() => {
    clearTimeout(timer);
    asked += 1;
  });
}

function problem(error) {
  const parts = [el("b", {}, error.title), el("span", {}, error.detail)];
  if (error.hint) parts.push(el("span", {}, error.hint));
  if (error.request_id) parts.push(el("code", {}, `request ${error.request_id}`));
  return el("div", { class: "wrong", role: "alert" }, parts);
}
