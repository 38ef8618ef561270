// The page of one schedule: its record in full, and its acts.

import { on } from "../actions.js";
import { textOf } from "../cell.js";
import { root } from "../el.js";
import { unwritten } from "../record.js";
import { read } from "../schedule_api.js";

const dialogs = () => import("../schedule_dialogs.js"); // when one opens
const ACTS = { "pause-schedule": "pauseSchedule", "resume-schedule": "resumeSchedule", "run-schedule": "runSchedule" };
const RECORD = ["key", "value", "size"];

export function start({ live }) {
  const section = document.querySelector("[data-schedule]");
  const { topic, id } = section.dataset;
  const what = { topic, schedule: id };
  const refreshed = (done) => done && live.refresh();
  for (const [name, operation] of Object.entries(ACTS)) on(name, async () => refreshed(await (await dialogs()).actOn(operation, what)));
  on("edit-schedule", async () => refreshed(await (await dialogs()).editSchedule(what)));
  on("move-schedule", async () => refreshed(await (await dialogs()).moveSchedule(what)));
  on("cancel-schedule", async () => {
    if (await (await dialogs()).actOn("cancelSchedule", what)) location.assign(`${root}/schedules?${new URLSearchParams({ topic })}`);
  });
  const record = new Record(what, section.dataset.revision);
  put(section.dataset.paused);
  record.load();
  document.addEventListener("comet:document", ({ detail }) => {
    put(textOf(detail.fields.paused));
    record.put(detail);
  });
}

function put(paused) {
  const button = (name) => document.querySelector(`[data-action="${name}"]`);
  button("pause-schedule").hidden = Boolean(paused);
  button("resume-schedule").hidden = !paused;
}

// The record in full, in place of its preview. Read again after each change of the schedule, but not when it has fired.
class Record {
  constructor(what, revision) {
    this.what = what;
    this.rendered = revision; // that of the page before any update
    this.known = null; // {preview, revision, fired} of the last update
    this.reads = 0;
  }

  put({ fields, tables }) {
    const { known } = this;
    const preview = JSON.stringify([RECORD.map((name) => fields[name]), tables.headers.rows]);
    this.known = { preview, revision: textOf(fields.revision), fired: fields.fired.v };
    if ((known?.revision ?? this.rendered) === this.known.revision) return;
    if (!known || preview !== known.preview || this.known.fired <= known.fired) this.load();
  }

  async load() {
    const number = ++this.reads;
    const found = await read(this.what).catch(() => null); // the preview stays
    if (!found || number !== this.reads) return; // a later read has begun
    const body = document.querySelector("[data-content]");
    body.replaceChildren(...unwritten(found.record.headers ?? [], found.bytes));
    body.hidden = false;
    document.querySelector("[data-preview]").hidden = true;
  }
}
