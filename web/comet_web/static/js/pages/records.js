// The page of a topic's records: the live tail, the rest of a search, and the panel of a record. The first results are in
// the HTML.

import { content, show } from "../record.js";
import { Rows } from "../rows.js";
import { ROWS_MAX, Tail } from "../tail.js";
import { toast } from "../toast.js";
import { attach } from "../topic_header.js";

const LISTED_MAX = 5_000; // rows of a search on one page; the export has more

export function start({ live }) {
  attach();
  const section = document.querySelector("[data-records]");
  const rows = new Rows(section, section.dataset.start === "live" ? ROWS_MAX : LISTED_MAX);
  const params = { ...Object.fromEntries(new URLSearchParams(location.search)), topic: section.dataset.topic };
  searchForm(document.querySelector("[data-search]"));
  if (section.dataset.start === "live") new Tail(section, rows, live, params);
  else new Search(section, rows, live, params);
  opening(section, rows);
  unfolded(section.querySelector(".chooser"), async () => (await import("../fields.js")).fields(section));
  const saved = document.querySelector("[data-saved]");
  unfolded(saved, async () => (await import("../saved_filters.js")).savedFilters(saved, section.dataset.topic));
  exporting(section);
  permalink(params, rows);
}

// Runs `work` when a list of choices first opens: the page does not wait for it.
function unfolded(details, work) {
  details.addEventListener("toggle", work, { once: true });
  if (details.open) details.dispatchEvent(new Event("toggle"));
}

// ---- the form

function searchForm(form) {
  const follow = () => {
    const start = form.elements.start.value;
    for (const part of form.querySelectorAll("[data-for]")) {
      part.hidden = part.dataset.for !== start;
      part.querySelector("input").disabled = part.hidden;
    }
    return start;
  };
  form.addEventListener("change", ({ target }) => {
    const start = follow();
    if (target.name === "start" && (start === "offset" || start === "time")) {
      form.elements[start].focus(); // it needs a value
    } else if (target.matches("select, [type=radio]")) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const params = new URLSearchParams([...new FormData(form)].filter(([, text]) => text !== ""));
    if (params.get("start") === "newest") params.delete("start");
    if (params.get("limit") === "50") params.delete("limit");
    const query = params.toString();
    location.assign(query ? `${location.pathname}?${query}` : location.pathname);
  });
  addEventListener("pageshow", follow); // on Back, browsers restore the fields
}

// ---- the rest of a search

class Search {
  constructor(section, rows, live, params) {
    this.rows = rows;
    this.live = live;
    this.params = params;
    this.cursor = section.dataset.cursor;
    this.channel = null;
    this.summary = section.querySelector("[data-found]");
    this.bar = section.querySelector("[data-progress]");
    this.stop = section.querySelector("[data-stop]");
    this.more = section.querySelector("[data-more]");
    this.none = section.querySelector("[data-none]");
    this.stop.addEventListener("click", () => this.channel?.send({ stop: true }));
    this.more.addEventListener("click", () => this.begin());
    if (section.dataset.reason === "budget") this.begin();
    else this.#end(section.dataset.reason);
  }

  begin() {
    this.more.hidden = true;
    this.stop.hidden = this.bar.hidden = false;
    this.none.hidden = true;
    const params = () => ({ ...this.params, cursor: this.cursor });
    this.channel = this.live.open("search", params, (event, problem) => this.#hear(event, problem));
  }

  #hear(event, problem) {
    if (problem) {
      toast([problem.title, problem.detail].filter(Boolean).join(": "), "bad");
      return this.#over("budget");
    }
    this.rows.append(event.rows);
    this.bar.value = event.share;
    this.summary.textContent = event.text;
    if (event.end) {
      this.cursor = event.end.cursor;
      const nothing = this.none.querySelector("[data-nothing-text]");
      if (event.end.nothing && nothing) nothing.textContent = event.end.nothing;
      this.#over(event.end.reason);
    }
  }

  #over(reason) {
    this.channel.close();
    this.channel = null;
    this.stop.hidden = this.bar.hidden = true;
    this.none.hidden = this.rows.count > 0 || reason !== "end";
    this.#end(reason);
  }

  #end(reason) {
    this.more.hidden = !this.cursor || !["limit", "budget", "stopped"].includes(reason) || this.rows.count >= LISTED_MAX;
  }
}

// ---- records

function opening(section, rows) {
  section.addEventListener("click", (event) => {
    const row = event.target.closest("tbody tr");
    if (row?.classList.contains("opened")) return;
    if (event.target.closest(".opener")) return rows.toggle(row, () => content({ topic: rows.topic, ...idOf(row) }));
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
    if (!getSelection().isCollapsed) return; // text is being selected
    event.preventDefault();
    open(rows, row);
  });
}

function open(rows, row) {
  for (const other of rows.body.querySelectorAll("[aria-selected]")) other.removeAttribute("aria-selected");
  row.setAttribute("aria-selected", "true");
  show({ topic: rows.topic, ...idOf(row) }, { from: row.querySelector("a") });
}

function idOf(row) {
  const [partition, offset] = row.dataset.key.split("-");
  return { partition: Number(partition), offset };
}

// A permalink opens its record.
function permalink({ start, partition, offset }, rows) {
  if (start || !partition || !offset) return;
  const row = rows.body.querySelector(`tr[data-key="${CSS.escape(`${partition}-${offset}`)}"]`);
  if (row) open(rows, row);
  else toast(`No record at offset ${offset} of partition ${partition}: it was deleted or is not written yet.`, "warn");
}

// ---- export

// Shows errors of an export on this page instead of a page of its own.
function exporting(section) {
  const details = section.querySelector(".export");
  const form = details.querySelector("form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const address = `${form.action}?${new URLSearchParams(new FormData(form))}`;
    const probe = new AbortController();
    const answer = await fetch(address, { signal: probe.signal }).catch(() => null);
    if (answer?.ok) {
      probe.abort(); // it works: let the browser download it
      details.open = false;
      return void location.assign(address);
    }
    const problem = (await answer?.json().catch(() => null)) ?? { title: "The gateway does not answer" };
    toast([problem.title, problem.detail, problem.hint].filter(Boolean).join(" · "), "bad");
  });
}
