// The list of schedules: makes a new one, and leads to it.

import { on } from "../actions.js";
import { root } from "../el.js";

const dialogs = () => import("../schedule_dialogs.js"); // when one opens

export function start() {
  on("new-schedule", async () => {
    const topic = new URLSearchParams(location.search).get("topic") ?? "";
    const made = await (await dialogs()).newSchedule(topic);
    if (made) location.assign(`${root}/schedules/${encodeURIComponent(made.topic)}/${encodeURIComponent(made.id)}`);
  });
}
