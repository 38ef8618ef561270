// The list of topics: make, clone, delete one or many.

import { on } from "../actions.js";
import { tableOf } from "../bind.js";
import { store, stored } from "../stored.js";
import { toast } from "../toast.js";
import { cloneTopic, createTopic, deleteTopics } from "../topic_acts.js";

const LOOKS_MAX = 10;
let chosen = [];

export function start() {
  const told = stored("told");
  if (told) {
    store("told", null);
    toast(told);
  }
  on("create-topic", async () => (await createTopic()) && showNext());
  on("clone-topic", async () => (await cloneTopic(chosen[0])) && showNext());
  on("delete-topics", async () => (await deleteTopics(chosen)) && showNext());
  document.addEventListener("comet:selection", ({ detail }) => choose(detail.keys));
  choose([...(tableOf("topics")?.picked ?? [])]); // somebody was faster
}

// What one did oneself needs no "list changed": it is shown as soon as the cluster tells of it, if that is bit by bit.
function showNext() {
  let looks = 0;
  document.addEventListener("comet:document", function look() {
    const button = document.querySelector("[data-table=topics] [data-changed]");
    if (button && !button.hidden) button.click();
    if ((looks += 1) >= LOOKS_MAX) document.removeEventListener("comet:document", look);
  });
}

function choose(keys) {
  chosen = keys;
  const shown = document.querySelector("[data-chosen]");
  shown.hidden = !chosen.length;
  shown.querySelector("[data-chosen-text]").textContent = `${chosen.length} selected`;
  shown.querySelector("[data-action=clone-topic]").hidden = chosen.length !== 1;
}
