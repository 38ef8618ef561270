// Overview: what can be done from it.

import { on } from "../actions.js";
import { createTopic } from "../topic_acts.js";

export function start({ live }) {
  on("create-topic", async () => (await createTopic()) && live.refresh());
}
