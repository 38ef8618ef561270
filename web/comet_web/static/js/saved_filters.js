// Filters of a topic's records, kept under a name in this browser for its user. The address shares them with others.

import { copy } from "./clipboard.js";
import { el, icon } from "./el.js";
import { store, stored } from "./stored.js";
import { toast } from "./toast.js";

const MOST = 50; // of one topic
const NAME_MAX = 60; // characters
const ONCE = new Set(["offset", "partition"]); // of a permalink: of one record, not of a filter

export function savedFilters(details, topic) {
  const memory = `filters.${details.dataset.viewer}.${topic}`;
  const list = el("ul", { "aria-label": "Saved filters" });
  const none = el("p", { class: "hint" }, "No saved filter of this topic yet.");
  const name = el("input", { "aria-label": "Name of the filter", placeholder: "Name", maxlength: String(NAME_MAX), autocomplete: "off" });
  const keep = el("button", { type: "button", class: "button small", onclick: save }, "Save");
  const share = el("button", { type: "button", class: "button small", onclick: () => copy(location.href) }, icon("copy"), "Copy link to this view");
  details.querySelector(".pop").append(list, none, el("div", { class: "keep" }, name, keep), share);
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it stands in the form of the search
    save();
  });
  show();

  function save() {
    const known = stored(memory, {});
    const text = name.value.trim();
    const query = asQuery();
    if (!text) return void name.focus();
    if (!query) return void toast("Search for something first: this page has no filter.", "warn");
    if (!(text in known) && Object.keys(known).length >= MOST) return void toast(`At most ${MOST} filters of a topic are saved. Remove one first.`, "warn");
    store(memory, { ...known, [text]: query });
    name.value = "";
    show();
    toast(`Filter ${text} saved.`);
  }

  function show() {
    const known = Object.entries(stored(memory, {}));
    none.hidden = known.length > 0;
    list.replaceChildren(
      ...known.map(([text, query]) =>
        el("li", {}, el("a", { href: location.pathname + query, title: decodeURIComponent(query.slice(1).replaceAll("+", " ")) }, text),
          el("button", { type: "button", class: "plain", "aria-label": `Remove the filter ${text}`, title: "Remove", onclick: () => remove(text) }, icon("trash")))),
    );
  }

  function remove(text) {
    const { [text]: _, ...rest } = stored(memory, {});
    store(memory, Object.keys(rest).length ? rest : null);
    show();
    name.focus();
  }
}

function asQuery() {
  const query = new URLSearchParams(location.search);
  if (!query.get("start")) for (const one of ONCE) query.delete(one);
  const text = query.toString();
  return text && `?${text}`;
}
