// The page of a topic's keys: the value of the key that was looked up, as the panel of a record shows it, and the dialogs
// that set and delete keys. Lists and revisions are tables of the document.

import { on } from "../actions.js";
import { textOf } from "../cell.js";
import { root } from "../el.js";
import { content, show } from "../record.js";
import { attach } from "../topic_header.js";

const dialogs = () => import("../key_dialogs.js"); // when one opens
const topic = decodeURIComponent(location.pathname.slice(root.length).split("/")[2]);

export function start({ live }) {
  attach();
  const section = document.querySelector("[data-looked]");
  const looked = section && new LookedUp(section);
  on("new-key", async () => {
    const made = await (await dialogs()).setKey(topic);
    if (made) location.assign(`${location.pathname}?${made.address}`);
  });
  on("edit-key", async () => {
    if (await (await dialogs()).editKey(topic, looked.shown)) live.refresh();
  });
  on("delete-key", async () => {
    if (await (await dialogs()).deleteKey(topic, looked.shown)) live.refresh();
  });
  document.addEventListener("comet:document", ({ detail }) => looked?.put(detail.fields));
  document.addEventListener("comet:row", (event) => openRevision(event, event.target.closest("tr")));
  document.addEventListener("click", (event) => {
    const link = event.target.closest('[data-table="history"] tbody a');
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) openRevision(event, link.closest("tr"));
  });
}

// A revision opens beside the page, as any record.
function openRevision(event, row) {
  if (!row.closest('[data-table="history"]')) return;
  event.preventDefault();
  const [partition, offset] = row.dataset.key.split("-");
  show({ topic, partition: Number(partition), offset }, { from: row.querySelector("a") });
}

class LookedUp {
  constructor(section) {
    this.section = section;
    this.body = section.querySelector("[data-content]");
    this.shown = null; // {state, key_base64, partition, revision}
    const { state, keyBase64, partition, revision } = section.dataset;
    this.#show({ state, key_base64: keyBase64, partition, revision });
  }

  // The key as an update has it.
  put(fields) {
    const now = Object.fromEntries(Object.keys(this.shown).map((name) => [name, textOf(fields[name])]));
    if (now.state !== this.shown.state || now.revision !== this.shown.revision) this.#show(now);
  }

  #show(now) {
    this.shown = now;
    const button = (name) => this.section.querySelector(`[data-action="${name}"]`);
    button("delete-key").hidden = now.state !== "value";
    button("edit-key").hidden = now.state === "unread";
    button("edit-key").lastChild.data = now.state === "value" ? "Edit" : "Set";
    this.body.hidden = now.state !== "value";
    if (now.state === "value") this.body.replaceChildren(content({ topic, partition: Number(now.partition), offset: now.revision }));
  }
}
