// A live table. New figures are shown at once. Order and rows do not change while the pointer or the focus is among the
// rows; added or removed rows of a main table wait for a click on "List changed".
//
//   document, "comet:selection"  detail: {table, keys}
//   table,    "comet:row"        detail: {key}; a row was clicked. preventDefault(): its link is not followed

import { fill, textOf } from "./cell.js";
import { el, root } from "./el.js";
import { navigate, withQuery } from "./navigate.js";
import { store, stored } from "./stored.js";

const TYPING_MS = 200;

export class Table {
  constructor(section) {
    this.section = section;
    this.id = section.dataset.table;
    this.main = section.dataset.main === "true";
    this.of = this.main ? "" : `${this.id}.`; // prefix of its query parameters
    this.frame = section.querySelector(".frame");
    this.body = section.querySelector("tbody");
    this.heads = [...section.querySelectorAll("th[data-column]")];
    this.picks = Boolean(section.querySelector("[data-pick-all]"));
    this.button = section.querySelector("[data-changed]");
    this.rows = new Map(); // key to {node, cells}
    this.picked = new Set();
    this.table = null; // as last received
    this.counted = null; // total and matched, as shown
    this.waiting = false;
    for (const node of this.body.rows) this.rows.set(node.dataset.key, { node, cells: [], link: "" });
    this.#columns();
    this.#listen();
  }

  put(table, fresh) {
    this.table = table;
    for (const [key, row] of this.rows) {
      const cells = table.rows[key];
      row.node.toggleAttribute("data-gone", !cells);
      if (cells) this.#fill(row, cells, table.links?.[key] ?? "");
    }
    const held = this.frame.matches(":hover, :focus-within");
    const grown = this.main && this.counted !== null && this.rows.size > 0 && this.#others();
    const same = table.order.length === this.rows.size && table.order.every((key, at) => this.body.rows[at]?.dataset.key === key);
    if (fresh || (!grown && (same || !held))) this.#arrange();
    else this.#wait(true);
  }

  // Whether rows were added or removed. On one of several pages rows also change with the order, which does not count.
  #others() {
    const { total, matched, pages, order } = this.table;
    if (this.counted !== `${total} ${matched}`) return true;
    return pages < 2 && order.some((key) => !this.rows.has(key));
  }

  // Puts every row in its place.
  #arrange() {
    const { table } = this;
    if (!table) return;
    for (const [at, key] of table.order.entries()) {
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = this.#row(key)));
      this.#fill(row, table.rows[key], table.links?.[key] ?? "");
      if (this.body.rows[at] !== row.node) this.body.insertBefore(row.node, this.body.rows[at] ?? null);
    }
    const present = new Set(table.order);
    for (const [key, { node }] of this.rows) {
      if (present.has(key)) continue;
      node.remove();
      this.rows.delete(key);
      if (this.picked.delete(key)) this.#picked();
    }
    this.counted = `${table.total} ${table.matched}`;
    this.#wait(false);
    this.#around();
  }

  #wait(waiting) {
    this.waiting = waiting;
    if (this.button) this.button.hidden = !waiting;
  }

  #row(key) {
    const node = el("tr", { dataset: { key } });
    if (this.picks) node.append(el("td", { class: "pick" }, el("input", { type: "checkbox", dataset: { pick: "" } })));
    for (const head of this.heads) node.append(el("td", { class: head.className || null, hidden: head.hidden }));
    return { node, cells: [], link: "" };
  }

  #fill(row, cells, link) {
    const shift = this.picks ? 1 : 0;
    for (let at = 0; at < cells.length; at += 1) {
      if (row.cells[at] === cells[at] && (at || row.link === link)) continue;
      fill(row.node.cells[at + shift], cells[at], at ? "" : link);
    }
    if (link) row.node.dataset.href = root + link;
    else delete row.node.dataset.href;
    if (this.picks && textOf(row.cells[0]) !== textOf(cells[0])) {
      row.node.cells[0].firstElementChild.setAttribute("aria-label", `Select ${textOf(cells[0])}`);
    }
    row.cells = cells;
    row.link = link;
  }

  // Updates the surroundings of the rows: counts, pages, empty state.
  #around() {
    const { table, section } = this;
    const part = (name) => section.querySelector(`[data-${name}]`);
    this.frame.hidden = !table.matched;
    part("nothing").hidden = table.total > 0;
    this.#heads();
    part("pager").hidden = table.pages < 2;
    part("at").textContent = `Page ${table.page} of ${table.pages}`;
    for (const link of section.querySelectorAll("[data-turn]")) {
      const to = table.page + Number(link.dataset.turn);
      link.hidden = to < 1 || to > table.pages;
      link.href = withQuery({ [`${this.of}page`]: to > 1 ? to : null });
    }
    if (!this.main) return;
    part("unmatched").hidden = !table.total || table.matched > 0;
    part("filter").hidden = !table.total && !table.filter;
    part("count").hidden = !table.total;
    part("count").textContent = `${table.matched.toLocaleString("en")} of ${table.total.toLocaleString("en")}`;
    const problem = part("problem");
    problem.hidden = !table.problem;
    if (problem.textContent !== (table.problem ?? "")) problem.textContent = table.problem ?? "";
    const box = part("filter").elements.filter;
    if (table.problem) box.setAttribute("aria-invalid", "true");
    else box.removeAttribute("aria-invalid");
    part("clear").href = withQuery({ filter: null, page: null });
    const csv = part("csv");
    if (csv) csv.href = csv.dataset.csv + new URL(withQuery({ page: null }), location.href).search;
  }

  #heads() {
    const sort = this.table.sort ?? "";
    const [key, down] = [sort.replace(/^-/, ""), sort.startsWith("-")];
    for (const head of this.heads) {
      const link = head.querySelector("[data-sort]");
      if (!link) continue;
      const mine = head.dataset.column === key;
      if (mine) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      const next = mine ? !down : head.classList.contains("n");
      link.href = withQuery({ [`${this.of}sort`]: (next ? "-" : "") + head.dataset.column, [`${this.of}page`]: null });
    }
  }

  #listen() {
    const settle = () => {
      if (!this.waiting || this.frame.matches(":hover, :focus-within")) return;
      if (!this.main || !this.#others()) this.#arrange();
    };
    this.frame.addEventListener("pointerleave", settle);
    this.frame.addEventListener("focusout", () => queueMicrotask(settle));
    this.button?.addEventListener("click", () => this.#arrange());
    this.body.addEventListener("click", (event) => this.#choose(event));
    this.section.addEventListener("change", (event) => this.#changed(event));
    const filter = this.section.querySelector("[data-filter]");
    filter?.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#filter(filter);
    });
    let typing = 0;
    filter?.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.#filter(filter), TYPING_MS);
    });
  }

  #filter(form) {
    const url = withQuery({ filter: form.elements.filter.value, page: null });
    if (url !== location.pathname + location.search) navigate(url, { replace: true });
  }

  // A click in a row follows its link, unless it hits a control or selects text.
  #choose(event) {
    const row = event.target.closest("tr");
    if (!row || event.target.closest("a, button, input, label, summary, .pick")) return;
    if (getSelection().type === "Range") return;
    const chosen = new CustomEvent("comet:row", { detail: { key: row.dataset.key }, bubbles: true, cancelable: true });
    if (!row.dispatchEvent(chosen)) return;
    const link = row.querySelector("a[href]");
    if (link && row.dataset.href) link.dispatchEvent(new MouseEvent("click", event));
  }

  // ---- picking rows, choosing columns

  #changed(event) {
    const box = event.target;
    if (box.matches("[data-pick]")) this.#pick(box.closest("tr"), box.checked);
    else if (box.matches("[data-pick-all]")) for (const { node } of this.rows.values()) this.#pick(node, box.checked);
    else if (box.matches("[data-choose]")) return this.#column(box.dataset.choose, box.checked, true);
    else return;
    this.#picked();
  }

  #pick(row, checked) {
    row.querySelector("[data-pick]").checked = checked;
    row.setAttribute("aria-selected", String(checked));
    if (checked) this.picked.add(row.dataset.key);
    else this.picked.delete(row.dataset.key);
  }

  #picked() {
    const all = this.section.querySelector("[data-pick-all]");
    all.checked = this.picked.size > 0 && this.picked.size === this.rows.size;
    all.indeterminate = this.picked.size > 0 && this.picked.size < this.rows.size;
    const detail = { table: this.id, keys: [...this.picked] };
    document.dispatchEvent(new CustomEvent("comet:selection", { detail }));
  }

  #columns() {
    this.memory = `columns.${document.documentElement.dataset.page}.${this.id}`;
    this.chosen = stored(this.memory, {});
    for (const [key, shown] of Object.entries(this.chosen)) this.#column(key, shown, false);
  }

  #column(key, shown, remember) {
    const at = this.heads.findIndex((head) => head.dataset.column === key);
    if (at < 1) return;
    for (const row of [this.heads[0].parentElement, ...[...this.rows.values()].map(({ node }) => node)]) {
      row.cells[at + (this.picks ? 1 : 0)].hidden = !shown;
    }
    const box = this.section.querySelector(`[data-choose="${CSS.escape(key)}"]`);
    if (box) box.checked = shown;
    if (remember) store(this.memory, (this.chosen = { ...this.chosen, [key]: shown }));
  }
}
