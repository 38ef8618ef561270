// Overview: what can be done from it.

import { on } from "../actions.js";

export function start({ live }) {
  on("create-topic", async () => (await (await import("../topic_acts.js")).createTopic()) && live.refresh());
}
