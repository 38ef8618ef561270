// Moves leadership: a dry run first, then the job, followed until it ends.

import { api } from "./api.js";
import { toast } from "./toast.js";

const LISTED_MAX = 6;
const POLL_MS = 500;
const OVER = new Set(["done", "stopped", "failed", "idle"]);

// `partitions` as POST /v1/leaders/move takes them; null: balances leaders over all brokers.
export async function moveLeaders({ title, note, action, partitions }) {
  const body = { partitions };
  const { confirm } = await import("./dialog.js");
  return confirm({
    title,
    note,
    action,
    danger: false,
    load: async () => {
      const plan = await api("POST", "/v1/leaders/move?dry_run=true", body);
      return [
        ["Leader changes", plan.changes ? plan.changes.toLocaleString("en") : "none"],
        ["Leaders per broker", plan.brokers.map(({ broker, before, after }) => `${broker}: ${before} → ${after}`).join(", ")],
        ...(plan.changes ? [["Partitions", listed(plan)]] : []),
      ];
    },
    submit: async () => {
      const begun = await api("POST", "/v1/leaders/move", body);
      if (!begun.changes) toast("Nothing to move.");
      return begun;
    },
  });
}

function listed({ changes, partitions }) {
  const some = partitions.slice(0, LISTED_MAX).map(({ topic, partition, leader, to }) => `${topic}/${partition}: ${leader ?? "none"} → ${to}`);
  return some.join(", ") + (changes > some.length ? ` and ${(changes - some.length).toLocaleString("en")} more` : "");
}

export const stopLeaders = () => api("POST", "/v1/leaders/stop");

// Shows the progress of the job in `section` until it ends; shows the result if it was started here or seen running.
export async function follow(section, begun = false) {
  let seen = begun;
  for (;;) {
    const job = await api("GET", "/v1/leaders").catch(() => null);
    const over = !job || OVER.has(job.state);
    section.hidden = over;
    if (over) {
      if (job && seen) ended(job);
      return;
    }
    seen = true;
    section.querySelector("[data-job-title]").textContent = job.state === "stopping" ? "Stopping" : "Moving leaders";
    section.querySelector("[data-job-text]").textContent = `${job.led} of ${job.changes} partitions moved`;
    const progress = section.querySelector("[data-job-progress]");
    progress.max = Math.max(1, job.changes);
    progress.value = job.led;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function ended({ state, led, changes, error }) {
  if (state === "failed") toast(`Moving leaders failed after ${led} of ${changes}: ${error}`, "bad");
  else if (state === "stopped") toast(`Stopped: ${led} of ${changes} partitions moved.`, "warn");
  else toast(led === changes ? `All ${changes} partitions moved.` : `${led} of ${changes} partitions moved; the others follow once their replicas are in sync.`, led === changes ? "good" : "warn");
}
