// The dialog that writes several records: pasted, or from a file, with a preview, and a report of what was written and what
// was refused. They are sent in parts, so that it can be stopped between two.

import { Problem } from "./api.js";
import { el, icon } from "./el.js";
import { open, field } from "./dialog.js";
import { lines } from "./ndjson.js";
import { BYTES_MAX, lineOf, parse, RECORDS_MAX } from "./parse_records.js";
import { toast } from "./toast.js";
import { many, whole } from "./words.js";

const SHOWN_MAX = 8; // records of the preview
const CUT = 160; // characters of one of them
const LISTED_MAX = 100; // of what is refused
const PART_RECORDS = 500;
const PART_CHARACTERS = 512 << 10;
const TYPING_MS = 200;
const FORMATS = [["auto", "by its content"], ["json", "JSON: a list, or one value"], ["ndjson", "NDJSON: a value a line"], ["csv", "CSV: names in the first line"]];
const SHAPES = [["value", "is the value"], ["record", "is a record with key, value, headers"]];
const ACKS = [["1", "the leader (acks=1)"], ["all", "all in-sync replicas (acks=all)"]];

export async function produceMany(topic) {
  style();
  const part = new SeveralRecords(topic);
  await open({ title: `Produce records to ${topic}`, wide: true, action: "Produce", content: part.nodes, ready: () => part.ready, submit: () => part.write() });
}

function style() {
  const href = new URL("../css/produce.css", import.meta.url).href;
  if (!document.querySelector(`link[href="${CSS.escape(href)}"]`)) document.head.append(el("link", { rel: "stylesheet", href }));
}

class SeveralRecords {
  constructor(topic) {
    this.topic = topic;
    this.file = null; // {name, text}
    this.found = null; // by parse
    this.sending = null; // an AbortController
    this.finished = false;
    const select = (name, label, options) => field({ name, label, type: "select", options });
    this.text = field({ name: "records", label: "Records", type: "textarea", rows: 8, placeholder: '{"symbol": "ACME", "bid": 9.5}\n{"symbol": "ACME", "bid": 9.6}' });
    this.format = select("format", "Format", FORMATS);
    this.shape = select("shape", "Each object", SHAPES);
    this.key = select("key", "Key", [["", "none"]]);
    this.typed = field({ name: "typed", label: "Numbers, true and false of CSV as such, empty fields as null", type: "checkbox", value: true });
    this.acks = select("acks", "Acknowledged by", ACKS);
    this.choose = el("input", { type: "file", accept: ".json,.ndjson,.jsonl,.csv,.tsv,.txt", "aria-label": "File with records", onchange: () => this.#load(this.choose.files[0]) });
    this.chosen = el("p", { class: "file", hidden: true });
    this.preview = el("div", { class: "preview", "aria-live": "polite" });
    this.progress = el("progress", { max: "1", value: 0, hidden: true, "aria-label": "Records written" });
    this.stop = el("button", { type: "button", class: "button small", hidden: true, onclick: () => this.sending?.abort() }, "Stop");
    this.report = el("div", { class: "report", role: "status" });
    const drop = el("div", { class: "drop" }, icon("download"), el("span", {}, "Drop a file here, or"), this.choose, el("span", { class: "hint" }, `up to ${BYTES_MAX >> 20} MiB and ${whole(RECORDS_MAX)} records`));
    drop.addEventListener("dragover", (event) => event.preventDefault());
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#load(event.dataTransfer.files[0]);
    });
    this.nodes = [
      el("div", { class: "fields" }, this.text.node), drop, this.chosen,
      el("div", { class: "fields columns" }, [this.format, this.shape, this.key, this.acks, this.typed].map((each) => each.node)),
      this.preview, el("div", { class: "sending" }, this.progress, this.stop), this.report,
    ];
    let typing = 0;
    this.text.node.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.#parse(), TYPING_MS);
    });
    for (const each of [this.format, this.typed]) each.node.addEventListener("change", () => this.#parse());
    for (const each of [this.shape, this.key]) each.node.addEventListener("change", () => this.#show());
  }

  get ready() {
    return Boolean(this.found?.records.length) && !this.sending && !this.finished;
  }

  async #load(file) {
    if (!file) return;
    this.file = null;
    this.chosen.hidden = false;
    try {
      if (file.size > BYTES_MAX) throw new Error(`${file.name} has ${whole(file.size)} bytes, more than ${BYTES_MAX >> 20} MiB. Split it, or use: comet produce ${this.topic} < FILE`);
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      this.file = { name: file.name, text };
      this.chosen.replaceChildren(`${file.name}, ${whole(file.size)} bytes`, el("button", { type: "button", class: "button small", onclick: () => this.#drop() }, "Take away"));
    } catch (error) {
      this.chosen.replaceChildren(el("span", { dataset: { tone: "bad" } }, error instanceof TypeError ? `${file.name} is not text in UTF-8.` : error.message));
    }
    this.text.node.hidden = Boolean(this.file);
    this.#parse();
  }

  #drop() {
    this.file = null;
    this.choose.value = "";
    this.chosen.hidden = true;
    this.text.node.hidden = false;
    this.#parse();
    this.text.node.querySelector("textarea").focus();
  }

  #parse() {
    this.finished = false;
    this.report.replaceChildren();
    const text = this.file ? this.file.text : this.text.read();
    this.found = parse(text, { format: this.format.read(), typed: this.typed.read(), name: this.file?.name });
    const before = this.key.read();
    const key = this.key.node.querySelector("select");
    key.replaceChildren(...[["", "none"], ...this.found.fields.map((name) => [name, `the field ${name}`])].map(([value, label]) => el("option", { value, selected: value === before }, label)));
    this.shape.node.querySelector("select").value = this.found.shaped ? "record" : "value";
    this.typed.node.hidden = this.found.format !== "csv";
    this.#show();
  }

  #options() {
    return { key: this.key.read(), shape: this.shape.read() };
  }

  #show() {
    const { records, problems, more, format } = this.found;
    const shown = records.slice(0, SHOWN_MAX).map((record) => ({ record, line: lineOf(record, this.#options()) }));
    const rows = shown.map(({ record, line }) =>
      el("tr", {}, el("td", { class: "n" }, record.line), el("td", {}, el("code", { dataset: line.problem ? { tone: "bad" } : {} }, cut(line.problem ?? line.text)))));
    const count = records.length ? `${many(records.length, "record")} of ${format === "csv" ? "CSV" : format === "json" ? "JSON" : "NDJSON"}` : "";
    this.preview.replaceChildren(...[
      (count || problems.length > 0) && el("p", {}, el("b", {}, count || "No record can be read"), more && ` · the rest, beyond ${whole(RECORDS_MAX)}, is left out`,
        problems.length > 0 && el("span", { dataset: { tone: "bad" } }, ` · ${many(problems.length, "line")} refused`)),
      problems.length > 0 && refusals(problems, "Lines that cannot be read"),
      rows.length > 0 && el("div", { class: "frame", tabindex: "0", role: "region", "aria-label": "Preview" },
        el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "n" }, "Line"), el("th", { scope: "col" }, "Record, as it is sent"))), el("tbody", {}, rows))),
      records.length > rows.length && el("p", { class: "hint" }, `and ${whole(records.length - rows.length)} more`),
    ].filter(Boolean));
    this.#button();
  }

  #button() {
    const go = this.preview.closest("form")?.querySelector("[type=submit]");
    if (!go) return;
    go.textContent = this.found?.records.length ? `Produce ${many(this.found.records.length, "record")}` : "Produce";
    go.disabled = !this.ready;
  }

  // Resolves to null while the dialog has a report to show: a throw keeps it open.
  async write() {
    const outcome = { written: 0, refused: this.found.problems.map(({ line, message }) => ({ line, why: message })), unknown: 0, why: "" };
    this.sending = new AbortController();
    this.progress.hidden = this.stop.hidden = false;
    this.report.replaceChildren();
    try {
      await this.#send(outcome);
    } finally {
      this.sending = null;
      this.progress.hidden = this.stop.hidden = true;
    }
    const all = outcome.written === this.found.records.length && !outcome.refused.length;
    if (all) return void toast(`${many(outcome.written, "record")} written to ${this.topic}.`) ?? true;
    this.finished = true; // pressing again would write the same records twice
    this.#tell(outcome);
    throw new Problem({ title: outcome.why || "Not all records were written", detail: "The report above has the details.", hint: "Change the records to send others." });
  }

  async #send(outcome) {
    const { records } = this.found;
    const path = `/v1/topics/${encodeURIComponent(this.topic)}/records?acks=${this.acks.read()}`;
    let at = 0;
    while (at < records.length) {
      if (this.sending.signal.aborted) return void (outcome.why = "Stopped");
      const part = [];
      let size = 0;
      while (at < records.length && part.length < PART_RECORDS && size < PART_CHARACTERS) {
        const line = lineOf(records[at], this.#options());
        if (line.problem) outcome.refused.push({ line: records[at].line, why: line.problem });
        else {
          part.push({ line: records[at].line, text: line.text });
          size += line.text.length;
        }
        at += 1;
      }
      if (part.length && !(await this.#sendPart(path, part, outcome))) return;
      this.progress.value = at / records.length;
    }
  }

  // False when the rest is not to be sent. A part whose answer breaks off may have been written.
  async #sendPart(path, part, outcome) {
    let answered = 0;
    try {
      for await (const answer of lines("POST", path, `${part.map(({ text }) => text).join("\n")}\n`)) {
        const of = part[answered];
        if (!of) break;
        answered += 1;
        if (answer.problem) outcome.refused.push({ line: of.line, why: [answer.problem.title, answer.problem.detail].filter(Boolean).join(": ") });
        else outcome.written += 1;
      }
    } catch (error) {
      if (error instanceof Problem && error.status) {
        for (const { line } of part.slice(answered)) outcome.refused.push({ line, why: [error.title, error.detail].filter(Boolean).join(": ") });
        outcome.why = error.title;
        return false;
      }
      outcome.why = "The gateway does not answer";
    }
    outcome.unknown += part.length - answered;
    return answered === part.length;
  }

  #tell({ written, refused, unknown }) {
    const left = this.found.records.length + this.found.problems.length - written - refused.length - unknown;
    this.report.replaceChildren(...[
      el("p", {}, el("b", { dataset: { tone: "good" } }, `${many(written, "record")} written`), refused.length > 0 && [" · ", el("b", { dataset: { tone: "bad" } }, `${whole(refused.length)} refused`)],
        unknown > 0 && [" · ", el("b", { dataset: { tone: "warn" } }, `${whole(unknown)} unknown: they may have been written`)], left > 0 && ` · ${whole(left)} not sent`),
      refused.length > 0 && refusals(refused.map(({ line, why }) => ({ line, message: why })), "Refused records"),
    ].filter(Boolean));
    this.report.scrollIntoView({ block: "nearest" });
    this.#button();
  }
}

function refusals(problems, label) {
  const shown = problems.slice(0, LISTED_MAX).map(({ line, message }) => el("li", {}, el("b", {}, `Line ${line}`), `: ${message}`));
  const more = problems.length - shown.length;
  return el("ul", { class: "refusals", tabindex: "0", "aria-label": label }, shown, more > 0 && el("li", {}, `and ${whole(more)} more`));
}

const cut = (text) => (text.length > CUT ? `${text.slice(0, CUT)}…` : text);
