// The header of every page of a topic: its actions, and a notice if the topic is deleted meanwhile.

import { on } from "./actions.js";
import { root } from "./el.js";
import { store } from "./stored.js";

const acts = () => import("./topic_acts.js"); // with their dialogs, when one opens

export function attach() {
  on("produce", async (button, { topic }) => (await import("./produce.js")).produce(topic));
  on("add-partitions", async (button, { topic }) => (await acts()).addPartitions(topic));
  on("purge-topic", async (button, { topic }) => (await acts()).purgeTopic(topic));
  on("delete-topic", async (button, { topic }) => {
    if (!(await (await acts()).deleteTopics([topic]))) return;
    store("toast", `Topic ${topic} deleted.`); // shown on the next page
    location.assign(`${root}/topics`);
  });
  document.addEventListener("comet:problem", ({ detail }) => gone(detail?.code === "TOPIC_NOT_FOUND"));
}

// The page keeps watching: a topic that is created again under the name is shown.
function gone(is) {
  const note = document.querySelector("[data-gone]");
  if (is) document.querySelector("[data-page-problem]")?.remove(); // the notice below replaces it
  note.hidden = !is;
  for (const button of document.querySelectorAll(".head [data-action]")) button.disabled = is;
}
