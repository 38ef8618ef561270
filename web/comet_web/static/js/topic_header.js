// What every page of a topic has: its actions, and what is said when the topic is deleted under the eyes of who looks.

import { on } from "./actions.js";
import { root } from "./el.js";
import { store } from "./stored.js";
import { addPartitions, deleteTopics, purgeTopic } from "./topic_acts.js";

export function attach() {
  on("produce", async (button, { topic }) => (await import("./produce.js")).produce(topic));
  on("add-partitions", (button, { topic }) => addPartitions(topic));
  on("purge-topic", (button, { topic }) => purgeTopic(topic));
  on("delete-topic", async (button, { topic }) => {
    if (!(await deleteTopics([topic]))) return;
    store("told", `Topic ${topic} deleted.`); // the next page says so
    location.assign(`${root}/topics`);
  });
  document.addEventListener("comet:problem", ({ detail }) => gone(detail?.code === "TOPIC_NOT_FOUND"));
}

// The page goes on asking: a topic that is made again under the name is shown as soon as it is there.
function gone(is) {
  const note = document.querySelector("[data-gone]");
  if (is) document.querySelector("[data-page-problem]")?.remove(); // said below, in words that fit
  note.hidden = !is;
  for (const button of document.querySelectorAll(".head [data-action]")) button.disabled = is;
}
