// The list of records: rows as the gateway sends them, [key, cells, label], added at either end. Rows that are there stay
// unchanged.

import { el, icon, root } from "./el.js";
import { store, stored } from "./stored.js";

const MEMORY = "records.hidden";

export class Rows {
  // `section` is [data-records]; `most` is the number of rows; the oldest are removed.
  constructor(section, most) {
    this.section = section;
    this.topic = section.dataset.topic;
    this.table = section.querySelector("table");
    this.body = this.table.tBodies[0];
    this.frame = section.querySelector("[data-rows]");
    this.most = most;
    this.keys = new Set([...this.body.rows].map((row) => row.dataset.key));
    this.kinds = [...this.table.tHead.rows[0].cells].map((head) => head.className);
    for (const row of this.body.rows) row.cells[0].prepend(opener());
    this.#columns();
  }

  get count() {
    return this.keys.size;
  }

  // Newest first; known rows are skipped.
  prepend(rows) {
    const made = this.#made(rows);
    if (!made.length) return;
    this.body.prepend(...made);
    while (this.keys.size > this.most) {
      const last = this.body.lastElementChild;
      this.keys.delete(last.dataset.key);
      last.remove();
    }
    this.#shown();
  }

  append(rows) {
    const made = this.#made(rows);
    for (const row of made) row.className = "later"; // laid out when it comes into sight
    this.body.append(...made);
    if (made.length) this.#shown();
  }

  #made(rows) {
    const fresh = rows.filter(([key]) => !this.keys.has(key));
    return fresh.map(([key, cells, label]) => {
      this.keys.add(key);
      return el("tr", { role: "row", dataset: { key } }, cells.map((cell, at) => this.#cell(cell, at, label)));
    });
  }

  #cell(cell, at, label) {
    const it = typeof cell === "string" ? { t: cell } : cell;
    const shown = it.a ? el("a", { href: root + it.a, "aria-label": `${label}, ${it.t}` }, it.t) : it.t;
    const made = el("td", { role: "cell", class: this.kinds[at], title: it.h }, at === 0 && opener(), shown);
    if (it.c) made.dataset.tone = it.c;
    return made;
  }

  // Shows what `content` makes below a row, or takes it away.
  toggle(row, content) {
    const button = row.querySelector(".opener");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) return row.nextElementSibling.remove();
    const cell = el("td", { role: "cell", "aria-colspan": this.kinds.length });
    row.after(el("tr", { role: "row", class: "opened" }, cell));
    cell.append(content());
  }

  #shown() {
    this.frame.hidden = false;
    this.section.querySelector("[data-none]").hidden = true;
  }

  // Hidden columns: stored in this browser, for all topics.
  #columns() {
    const hidden = new Set(stored(MEMORY, []));
    for (const box of this.section.querySelectorAll("[data-shown]")) {
      const name = box.dataset.shown;
      box.checked = !hidden.has(name);
      const show = () => this.table.classList.toggle(`without-${name}`, !box.checked);
      show();
      box.addEventListener("change", () => {
        show();
        if (box.checked) hidden.delete(name);
        else hidden.add(name);
        store(MEMORY, hidden.size ? [...hidden] : null);
      });
    }
  }
}

function opener() {
  return el("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-label": "Show the record here" }, icon("right"));
}
