// The command palette: a field with a list below it, by ARIA's pattern of a combobox with a listbox. The focus stays in
// the field; arrows move `aria-activedescendant`. The gateway finds the entries: see comet_web/views/palette.py.

import { act } from "./actions.js";
import { api, Problem } from "./api.js";
import { el, icon, root } from "./el.js";
import { done, wanted } from "./stored.js";
import { toast } from "./toast.js";

const TYPING_MS = 60;
const PAGE = 8; // entries of Page Up and Page Down
const ICONS = { Page: "right", Topic: "topics", Group: "groups", Broker: "brokers", Action: "play" };

let shown = null;

export function open() {
  if (shown) return;
  style();
  shown = new Palette();
}

// The styles come with the first palette: no page waits for them.
function style() {
  const href = new URL("../css/palette.css", import.meta.url).href;
  if (!document.querySelector(`link[href="${CSS.escape(href)}"]`)) document.head.append(el("link", { rel: "stylesheet", href }));
}

// Presses the button that was chosen on the page before.
export function press() {
  const action = wanted();
  done();
  const button = [...document.querySelectorAll(`[data-action="${CSS.escape(action)}"]`)].find((one) => one.checkVisibility());
  if (!button) return void toast("This page does not have that action now.", "warn");
  button.focus();
  act(button);
}

class Palette {
  constructor() {
    this.entries = [];
    this.at = 0;
    this.asked = null; // an AbortController
    this.typing = 0;
    this.field = el("input", {
      type: "text", role: "combobox", "aria-label": "Find a page, topic, group, broker or action", "aria-expanded": "true",
      "aria-controls": "palette-list", "aria-autocomplete": "list", placeholder: "Topic, group, page, or: produce orders",
      autocomplete: "off", autocapitalize: "off", spellcheck: "false", maxlength: "100",
    });
    this.list = el("ul", { id: "palette-list", role: "listbox", "aria-label": "Found" });
    this.note = el("p", { class: "palette-note", role: "status" });
    const keys = el("p", { class: "palette-keys", "aria-hidden": "true" }, el("kbd", {}, "↑"), el("kbd", {}, "↓"), " select ", el("kbd", {}, "Enter"), " open ", el("kbd", {}, "Esc"), " close");
    this.dialog = el("dialog", { class: "palette", "aria-label": "Find or do" }, el("div", { class: "palette-field" }, icon("filter"), this.field), this.list, this.note, keys);
    this.field.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#ask(), TYPING_MS);
    });
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("click", (event) => this.#pick(event.target.closest("[role=option]"), event));
    this.list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the field
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.close());
    this.dialog.addEventListener("close", () => this.close());
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.field.focus();
    this.#ask();
  }

  close() {
    if (shown !== this) return;
    shown = null;
    clearTimeout(this.typing);
    this.asked?.abort();
    this.dialog.close(); // which gives the focus back
    this.dialog.remove();
  }

  async #ask() {
    this.asked?.abort();
    const asked = (this.asked = new AbortController());
    try {
      const found = await api("GET", `/palette?q=${encodeURIComponent(this.field.value)}`, undefined, { signal: asked.signal });
      if (!found) throw new Problem({ title: "The session is over", hint: "Reload the page to log in." });
      this.#show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#show({ entries: [] });
      this.note.textContent = [error.title, error.detail, error.hint].filter(Boolean).join(" · ");
    }
  }

  #show({ entries, more = false }) {
    this.entries = entries;
    this.list.replaceChildren(...entries.map((entry, at) => this.#option(entry, at)));
    const count = entries.length === 1 ? "1 result" : `${entries.length} results`;
    this.note.textContent = entries.length ? `${count}${more ? ", the best; type more to see others" : ""}` : `Nothing matches “${this.field.value.trim()}”.`;
    this.#select(0);
  }

  #option({ label, hint, href }, at) {
    const inside = [icon(ICONS[hint] ?? "right"), el("span", { class: "name" }, label), el("span", { class: "hint" }, hint)];
    return el("li", { role: "option", id: `palette-${at}`, "aria-selected": "false", dataset: { at, href } }, inside);
  }

  #select(at) {
    this.at = Math.max(0, Math.min(this.entries.length - 1, at));
    for (const option of this.list.children) option.setAttribute("aria-selected", String(option.dataset.at === String(this.at)));
    const option = this.list.children[this.at];
    if (!option) return this.field.removeAttribute("aria-activedescendant");
    this.field.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const last = this.entries.length - 1;
    const to = {
      ArrowDown: this.at < last ? this.at + 1 : 0,
      ArrowUp: this.at > 0 ? this.at - 1 : last,
      PageDown: this.at + PAGE,
      PageUp: this.at - PAGE,
      ...(event.ctrlKey && { Home: 0, End: last }),
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.#select(to);
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      this.#pick(this.list.children[this.at], event);
    } else if (event.key === "Escape") {
      event.preventDefault(); // not also what is below
      this.close();
    }
  }

  #pick(option, event) {
    const entry = option && this.entries[Number(option.dataset.at)];
    if (!entry) return;
    if (entry.complete) {
      this.field.value = entry.complete;
      this.field.focus();
      return this.#ask();
    }
    const aside = event.ctrlKey || event.metaKey;
    if (!aside) this.close();
    const to = root + entry.href;
    if (aside) return void window.open(to, "_blank", "noopener");
    if (entry.action) wanted(entry.action);
    if (entry.action && to === location.pathname) press();
    else location.assign(to);
  }
}
