// Moves a partition to other brokers, or changes how many have it: a dry run first.

import { api } from "./api.js";
import { field } from "./dialog.js";
import { el } from "./el.js";
import { rehearse } from "./rehearse.js";
import { toast } from "./toast.js";
import { many, whole } from "./words.js";

const LISTED_MAX = 20; // brokers that the help names

export async function reassign(topic, partition) {
  const here = `/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}`;
  const [{ items: brokers }, { partitions }] = await Promise.all([api("GET", "/v1/brokers?limit=1000"), api("GET", `/v1/topics/${encodeURIComponent(topic)}`)]);
  const { replicas } = partitions.find((each) => each.partition === partition);
  const named = brokers.slice(0, LISTED_MAX).map(({ id, rack, draining }) => [id, rack && `rack ${rack}`, draining && "draining"].filter(Boolean).join(", "));
  const fields = [
    field({
      name: "replicas", label: "Brokers", value: replicas.join(", "), spellcheck: "false", autocomplete: "off", pattern: "[0-9, ]+",
      help: `Ids, the preferred leader first. The cluster has: ${named.join(" · ")}${brokers.length > named.length ? " · …" : ""}`,
    }),
  ];
  const wanted = ({ replicas: text }) => text.split(/[\s,]+/).filter(Boolean).map(Number);
  await rehearse({
    title: `Move partition ${partition} of ${topic}`,
    note: "New replicas copy the log from the leader; the old ones stay until they have it. No record is lost, and clients go on.",
    action: "Move partition",
    wide: false,
    fields,
    plan: async (values) => {
      const ids = wanted(values);
      return ids.length && ids.every(Number.isSafeInteger) ? api("POST", `${here}/move?dry_run=true`, { replicas: ids }) : null;
    },
    show: changes,
    does: ({ before, after }) => before.join() !== after.join(),
    submit: async (values) => {
      const done = await api("POST", `${here}/move`, { replicas: wanted(values) });
      toast(done.added.length ? `Partition ${partition} is being copied to broker ${done.added.join(", ")}.` : `Partition ${partition} has the replicas ${done.after.join(", ")}.`);
      return done;
    },
  });
}

function changes({ before, after, bytes, in_sync, added, removed }) {
  const same = before.join() === after.join();
  const rows = [
    ["Replicas", same ? "unchanged" : `${before.join(", ")} → ${after.join(", ")}`],
    ["In sync now", in_sync.join(", ") || "none"],
    ["To copy", added.length ? `${whole(bytes)} bytes to ${many(added.length, "broker")}` : "nothing"],
    ...(removed.length ? [["Deleted afterwards", `the copy on broker ${removed.join(", ")}`]] : []),
    ...(before[0] !== after[0] ? [["Preferred leader", `${before[0]} → ${after[0]}`]] : []),
  ];
  return el("dl", { class: "facts effect" }, rows.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));
}
