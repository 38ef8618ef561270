// The dialog that writes one record. `from` has its initial values: {partition, key, key_kind, kind, value, headers}.

import { api, Problem } from "./api.js";
import { form } from "./dialog.js";
import { el, root } from "./el.js";
import { formatted } from "./json_text.js";
import { followKinds, recordFields, recordMembers } from "./record_form.js";
import { toast } from "./toast.js";

const ACKS = [["1", "the leader (acks=1)"], ["all", "all in-sync replicas (acks=all)"]];

// Resolves to the partition and offset of the record, or to null.
export async function produce(topic, from = {}) {
  const { partition_count: partitions } = await api("GET", `/v1/topics/${encodeURIComponent(topic)}`);
  const shown = form({
    title: `Produce to ${topic}`,
    note: [
      "One record. ",
      el("button", { type: "button", class: "button small", onclick: (event) => several(event.target.closest("dialog"), topic) }, "Several records, or a file"),
      " ",
      el("button", { type: "button", class: "button small", onclick: (event) => tidied(event.target.closest("dialog")) }, "Format the value"),
    ],
    action: "Produce",
    wide: true,
    fields: [
      ...recordFields(from, partitions),
      { name: "acks", label: "Acknowledged by", type: "select", options: ACKS, value: "1" },
    ],
    submit: (values) => write(topic, values),
  });
  followKinds();
  const dialog = document.querySelector("dialog[open]");
  dialog.querySelector(`[name="${from.key_kind === "none" ? "value" : "key"}"]`).focus();
  return shown;
}

// Closes the dialog of one record and opens that of several.
async function several(dialog, topic) {
  dialog.dispatchEvent(new Event("cancel", { cancelable: true }));
  (await import("./produce_many.js")).produceMany(topic);
}

// Writes a JSON value with line breaks; numbers keep their digits.
function tidied(dialog) {
  const value = dialog.querySelector('[name="value"]');
  const text = formatted(value.value);
  if (text === null) return;
  value.value = text;
  value.dispatchEvent(new Event("input", { bubbles: true }));
  value.focus();
}

async function write(topic, values) {
  const members = recordMembers(values);
  // As text, so that the value keeps every digit that was typed.
  const answer = await api("POST", `/v1/topics/${encodeURIComponent(topic)}/records?acks=${values.acks}`, `{${members.join(",")}}`);
  const [result] = answer.results;
  if (result.problem) throw new Problem(result.problem);
  const href = `${root}/topics/${encodeURIComponent(topic)}/records?partition=${result.partition}&offset=${result.offset}`;
  const shown = toast(`Written to partition ${result.partition} at offset ${result.offset}. `);
  shown.querySelector("span").append(el("a", { href }, "Open record"));
  return result;
}
