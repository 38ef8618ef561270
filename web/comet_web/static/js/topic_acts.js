// Actions on topics as dialogs: create, clone, delete one or many, purge, add partitions. Destructive actions first show
// a dry run of the same call.

import { call, confirmAct, texts } from "./acts.js";
import { api } from "./api.js";
import { confirm, form } from "./dialog.js";
import { short } from "./scale.js";
import { nameProblem, read, topicSettings, usual, write } from "./settings.js";
import { toast } from "./toast.js";
import { many, whole } from "./words.js";

const AT_ONCE = 4; // concurrent calls
const TYPED_MAX = 3; // topics whose names are typed to confirm; for more, their number
const LISTED_MAX = 8;

const at = (topic, ...rest) => ["/v1/topics", encodeURIComponent(topic), ...rest].join("/");

// ---- create

// Resolves to the created topic, or null. `like`: a topic of the API whose partitions and settings are copied. A setting
// that is left empty gets the cluster's default.
export async function createTopic(like = null) {
  const { rules, replicas } = await topicSettings();
  return form({
    title: like ? `Clone ${like.name}` : "Create topic",
    note: like ? "Copies partitions and settings, not records." : "",
    action: "Create topic",
    wide: true,
    columns: true,
    fields: [
      {
        name: "name", label: "Name", required: true, autocomplete: "off", spellcheck: "false", maxlength: 249,
        value: like ? `${like.name}-copy` : "", help: "Letters, digits, '.', '_' and '-'. Names that begin with __ are internal.",
        check: (value) => nameProblem(value, (name) => name === like?.name),
      },
      { name: "partitions", label: "Partitions", type: "number", min: 1, max: 1000, required: true, value: like?.partition_count ?? 3, help: "Records are ordered within a partition. Partitions can be added later, not removed." },
      { name: "replicas", label: "Replicas", type: "number", min: 0, max: 15, required: true, value: like?.replicas ?? 0, help: `Per partition; 0 for the cluster's default, ${replicas}.` },
      ...[...rules.values()].map((rule) => settingField(rule, own(like, rule.name) ? write(rule, like.config[rule.name]) : "")),
    ],
    submit: async (values) => {
      const given = [...rules.values()].filter(({ name }) => values[name].trim());
      const config = Object.fromEntries(given.map((rule) => [rule.name, read(rule, values[rule.name])[0]]));
      const body = { name: values.name, partitions: Number(values.partitions), replicas: Number(values.replicas), config };
      const made = await api("POST", "/v1/topics", body);
      toast(`Topic ${made.name} created with ${many(made.partition_count, "partition")}.`);
      return made;
    },
  });
}

// Whether a new topic needs this setting to be like another one.
function own(like, name) {
  return Boolean(like) && (like.sources[name] === "topic" || like.config[name] !== like.defaults[name]);
}

function settingField(rule, value) {
  const shared = { name: rule.name, label: rule.label, help: rule.about + (rule.unlimited ? " none: no limit." : ""), value };
  if (rule.words.length) return { ...shared, type: "select", options: [["", usual(rule)], ...rule.words] };
  const check = (text) => (text.trim() ? read(rule, text)[1] : "");
  return { ...shared, placeholder: usual(rule), autocomplete: "off", spellcheck: "false", check };
}

export async function cloneTopic(topic) {
  return createTopic(await api("GET", at(topic)));
}

// ---- delete

// Resolves to the deleted topics, or null.
export async function deleteTopics(topics) {
  const one = topics.length === 1 ? topics[0] : null;
  const typed = topics.length <= TYPED_MAX ? topics.join(" ") : String(topics.length);
  const left = new Set(topics); // for a retry
  return confirm({
    ...texts("deleteTopic", { topic: one ?? typed }),
    ...(one ? {} : { title: `Delete ${topics.length} topics`, action: `Delete ${topics.length} topics` }),
    load: async () => {
      const found = await each(topics, (topic) => call("deleteTopic", { topic }, undefined, { dryRun: true }));
      const sum = (key) => found.reduce((all, answer) => all + Number(answer[key]), 0);
      const groups = new Map(found.flatMap((answer) => answer.groups.map((group) => [group.name, group])));
      const least = found.every((answer) => answer.complete) ? "" : "at least ";
      return [
        ...(one ? [] : [["Topics", listed(topics)]]),
        ["Partitions", whole(sum("partitions"))],
        ["Records", least + whole(sum("records"))],
        ["Size", least + short(sum("bytes"), "B")],
        ["Consumer groups", readers([...groups.values()])],
      ];
    },
    submit: async () => {
      await each([...left], async (topic) => {
        await gone(call("deleteTopic", { topic }));
        left.delete(topic);
      });
      toast(one ? `Topic ${one} deleted.` : `${topics.length} topics deleted.`);
      return topics;
    },
  });
}

// Another user may have deleted it first.
async function gone(deleting) {
  try {
    await deleting;
  } catch (error) {
    if (error.code !== "TOPIC_NOT_FOUND") throw error;
  }
}

function readers(groups) {
  if (!groups.length) return "none";
  return listed(groups.map((group) => (group.members ? `${group.name} (${many(group.members, "active member")})` : group.name)));
}

function listed(names) {
  const more = names.length - LISTED_MAX;
  return names.slice(0, LISTED_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

export async function purgeTopic(topic) {
  return confirmAct("deleteRecords", { topic }, {
    body: { before: "latest" },
    show: (found) => {
      const skipped = found.partitions.filter((each) => each.error);
      return [
        ["Records", whole(found.records)],
        ["Partitions", whole(found.partitions.length - skipped.length)],
        ...(skipped.length ? [["Skipped", skipped.map((each) => `${each.partition}: ${each.error.detail}`).join("; ")]] : []),
      ];
    },
    done: (found) => {
      const skipped = found.partitions.filter((each) => each.error);
      if (skipped.length) toast(`${many(found.records, "record")} deleted; ${many(skipped.length, "partition")} skipped: ${skipped[0].error.detail}`, "warn");
      else toast(`${many(found.records, "record")} of ${topic} deleted.`);
    },
  });
}

// ---- more partitions

export async function addPartitions(topic) {
  const { partition_count: before } = await api("GET", at(topic));
  const wanted = await form({
    title: texts("addPartitions", { topic }).title,
    note: `${before} now. Partitions cannot be removed.`,
    action: "Review",
    fields: [
      {
        name: "total", label: "Total partitions", type: "number", min: before + 1, max: 1000, required: true, value: before + 1,
        check: (value) => (Number(value) > before ? "" : `must be more than ${before}`),
      },
    ],
  });
  if (!wanted) return null;
  return confirmAct("addPartitions", { topic }, {
    body: { total: Number(wanted.total) },
    show: ({ before, after, keys_moved }) => [
      ["Partitions", `${before} → ${after}`],
      ["Keys that move", `${Math.round(100 * keys_moved)} %`],
    ],
    done: ({ after }) => toast(`${topic} has ${after} partitions.`),
  });
}

// Runs AT_ONCE calls at a time; after a failure no further one starts, and the error is thrown once the others end.
async function each(items, work) {
  const found = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      try {
        found[index] = await work(items[index]);
      } catch (error) {
        next = items.length;
        throw error;
      }
    }
  };
  const over = await Promise.allSettled(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker));
  const failed = over.find((one) => one.status === "rejected");
  if (failed) throw failed.reason;
  return found;
}
