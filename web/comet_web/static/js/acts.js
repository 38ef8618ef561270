// The acts of administration: their calls, and the texts of their dialogs. The gateway puts the table into each page.

import { api } from "./api.js";

const ACTS = JSON.parse(document.querySelector('meta[name="acts"]').content);

const fill = (text, what) => text.replace(/{(\w+)}/g, (whole, name) => what[name] ?? whole);

// Calls the operation on `what`: {topic}, {group}, {broker} and the like. With `dryRun` nothing changes, and the answer is the effect.
export function call(operation, what, body = undefined, { dryRun = false, headers = {} } = {}) {
  const { method, path } = ACTS[operation];
  const named = Object.fromEntries(Object.entries(what).map(([name, value]) => [name, encodeURIComponent(value)]));
  return api(method, fill(path, named) + (dryRun ? "?dry_run=true" : ""), body, { headers });
}

// The texts of its dialog: title, note, action, `type` (to be typed), and whether it destroys something.
export function texts(operation, what) {
  const { title, note, action, typed } = ACTS[operation];
  return { title: fill(title, what), note: fill(note, what), action, type: fill(typed, what), danger: Boolean(typed) };
}

// Asks for confirmation with the effect of a dry run, `show(plan)` as [[label, text], …], then acts. Resolves to the
// answer, or null. `more` replaces texts.
export async function confirmAct(operation, what, { body = undefined, show, done = () => {}, ...more }) {
  const { confirm } = await import("./dialog.js");
  return confirm({
    ...texts(operation, what),
    load: async () => show(await call(operation, what, body, { dryRun: true })),
    submit: async () => {
      const answer = await call(operation, what, body);
      done(answer);
      return answer;
    },
    ...more,
  });
}
