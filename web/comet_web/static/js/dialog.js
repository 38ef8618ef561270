// Dialogs: forms, and confirmations of destructive actions. A dialog stays open after an error, to retry.

import { Problem } from "./api.js";
import { el } from "./el.js";

let made = 0;

// Resolves to the result of `submit` for {name: value}, or to null if closed. A field:
// {name, label, type: "text" | "number" | "textarea" | "select" | "checkbox" | …, value, help, options, required, pattern,
// placeholder, min, max, rows, autocomplete, check}; options: [value, …] or [[value, label], …]; `check(value)` returns
// what is wrong, or "". `submit(values)` may throw.
export function form({ title, fields, submit = async (values) => values, note = "", action = "Save", wide = false, columns = false, danger = false }) {
  const shown = fields.map(field);
  return open({
    title,
    wide,
    content: [note && el("p", { class: "help" }, note), el("div", { class: columns ? "fields columns" : "fields" }, shown.map((each) => each.node))],
    action,
    danger,
    submit: () => submit(Object.fromEntries(shown.map((each) => [each.name, each.read()]))),
  });
}

// Resolves to the result of `submit` (true without one), or to null. `effect` is [[label, text], …]; `load` fetches it (a
// dry run); `type` is the text to type before the action is enabled.
export function confirm({ title, effect = [], load = null, type = "", action = "Delete", danger = true, submit = async () => true, note = "" }) {
  const list = el("dl", { class: "facts effect", hidden: !effect.length && !load });
  show(list, effect);
  const typed = type && field({ name: "typed", label: `Type ${type} to confirm`, required: true, autocomplete: "off" });
  return open({
    title,
    content: [note && el("p", {}, note), list, typed && typed.node],
    action,
    danger,
    ready: () => !type || typed.read() === type,
    load: load && (async () => show(list, await load())),
    submit: async () => (await submit()) ?? true,
  });
}

function show(list, effect) {
  list.replaceChildren(...effect.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));
}

// One field of a form with its reader, for dialogs that are more than a form.
export function field(spec) {
  const id = `field-${(made += 1)}`;
  const { name, label, type = "text", value = "", help = "", options = null, rows = 6, required = false, check = null, ...rest } = spec;
  const wrong = check && el("span", { class: "problem", id: `${id}-problem`, role: "status" });
  const about = [help && `${id}-help`, check && `${id}-problem`].filter(Boolean).join(" ");
  const shared = { id, name, required, "aria-describedby": about || null, ...rest };
  const helped = help && el("span", { class: "help", id: `${id}-help` }, help);
  const named = el("label", { for: id }, label);
  if (type === "checkbox") {
    const input = el("input", { type, ...shared, checked: Boolean(value) });
    return { name, node: el("div", { class: "field check" }, input, named, helped), read: () => input.checked };
  }
  const input =
    type === "select"
      ? el("select", shared, (options ?? []).map((each) => option(each, value)))
      : type === "textarea"
        ? el("textarea", { ...shared, rows, spellcheck: "false", value })
        : el("input", { type, ...shared, value });
  if (check) checked(input, wrong, check);
  return { name, node: el("div", { class: "field" }, named, input, wrong, helped), read: () => input.value };
}

// Shows what is wrong below the field after the first input; an invalid field blocks the submit.
function checked(input, wrong, check) {
  const validate = () => {
    const problem = check(input.value) || "";
    input.setCustomValidity(problem);
    return problem;
  };
  validate();
  input.addEventListener("input", () => {
    wrong.textContent = validate();
    if (wrong.textContent) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  });
}

function option(each, chosen) {
  const [value, label] = Array.isArray(each) ? each : [each, each];
  return el("option", { value, selected: String(value) === String(chosen) }, label);
}

// The dialog itself; its button `dismiss` changes nothing. `load` runs first and on retry; the action waits for it. A
// Problem with `shown` is explained by the content.
export function open({ title, content, action = "", danger = false, wide = false, dismiss = "Cancel", ready = () => true, load = null, submit = null }) {
  const before = document.activeElement;
  const wrong = el("div", { class: "wrong", role: "alert", hidden: true });
  const cancel = el("button", { type: "button", class: "button" }, action ? dismiss : "Close");
  const go = action && el("button", { type: "submit", class: `button primary${danger ? " danger" : ""}` }, action);
  const id = `dialog-${(made += 1)}`;
  const inside = el("form", {}, el("h2", { id }, title), content, wrong, el("div", { class: "buttons" }, cancel, go));
  const dialog = el("dialog", { "aria-labelledby": id, class: wide ? "wide" : "" }, inside);
  document.body.append(dialog);
  return new Promise((resolve) => {
    let loaded = !load;
    let busy = false;
    const refresh = () => go && (go.disabled = busy || !loaded || !ready());
    const leave = (result) => {
      dialog.close();
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(result);
    };
    const attempt = async (work) => {
      busy = true;
      wrong.hidden = true;
      inside.setAttribute("aria-busy", "true");
      refresh();
      try {
        return await work();
      } catch (error) {
        if (!error.shown) explain(wrong, error, load && !loaded ? fetchEffect : null);
        if (!(error instanceof Problem)) throw error;
      } finally {
        busy = false;
        inside.removeAttribute("aria-busy");
        refresh();
      }
    };
    const fetchEffect = () =>
      attempt(async () => {
        await load();
        loaded = true;
      });
    cancel.addEventListener("click", () => leave(null));
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      if (!busy || !loaded) leave(null); // a read-only call may be left
    });
    // Browsers close it after a second Esc even if "cancel" is prevented; an error still has to be shown.
    dialog.addEventListener("close", () => {
      if (!dialog.isConnected) return; // by `leave`
      if (busy && loaded) dialog.showModal();
      else leave(null);
    });
    inside.addEventListener("input", refresh);
    inside.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (busy || !loaded || !ready() || !submit) return;
      const done = await attempt(async () => ({ result: await submit() }));
      if (done) leave(done.result);
    });
    dialog.showModal();
    refresh();
    if (load) fetchEffect();
  });
}

function explain(wrong, error, retry) {
  const parts = [el("b", {}, error.title ?? "Request failed"), el("span", {}, error.detail ?? error.message)];
  if (error.hint) parts.push(el("span", {}, error.hint));
  if (error.request_id) parts.push(el("code", {}, `request ${error.request_id}`));
  if (retry) parts.push(el("button", { type: "button", class: "button small", onclick: retry }, "Try again"));
  wrong.replaceChildren(...parts);
  wrong.hidden = false;
}
