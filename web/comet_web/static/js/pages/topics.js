// The page of all topics: create, clone, delete one or many.

import { on } from "../actions.js";
import { tableOf } from "../bind.js";
import { store, stored } from "../stored.js";
import { toast } from "../toast.js";

const UPDATES_MAX = 10;
let chosen = [];

export function start() {
  const text = stored("toast");
  if (text) {
    store("toast", null);
    toast(text);
  }
  on("create-topic", async () => (await (await acts()).createTopic()) && showNext());
  on("clone-topic", async () => (await (await acts()).cloneTopic(chosen[0])) && showNext());
  on("delete-topics", async () => (await (await acts()).deleteTopics(chosen)) && showNext());
  document.addEventListener("comet:selection", ({ detail }) => choose(detail.keys));
  choose([...(tableOf("topics")?.picked ?? [])]); // rows selected before this script ran
}

const acts = () => import("../topic_acts.js"); // with their dialogs, when one opens

// Shows the user's own changes without a click on "List changed", as the cluster reports them.
function showNext() {
  let updates = 0;
  document.addEventListener("comet:document", function next() {
    const button = document.querySelector("[data-table=topics] [data-changed]");
    if (button && !button.hidden) button.click();
    if ((updates += 1) >= UPDATES_MAX) document.removeEventListener("comet:document", next);
  });
}

function choose(keys) {
  chosen = keys;
  const shown = document.querySelector("[data-chosen]");
  shown.hidden = !chosen.length;
  shown.querySelector("[data-chosen-text]").textContent = `${chosen.length} selected`;
  shown.querySelector("[data-action=clone-topic]").hidden = chosen.length !== 1;
}
