// The page of a topic's partitions: bars by partition, leadership. Also the script of the page of its consumers.

import { on } from "../actions.js";
import { api } from "../api.js";
import { tableOf } from "../bind.js";
import { confirm, form } from "../dialog.js";
import { el, svg } from "../el.js";
import { moveLeaders } from "../leaders.js";
import { toast } from "../toast.js";
import { attach } from "../topic_header.js";
import { many, whole } from "../words.js";

const at = (topic, ...rest) => ["/v1/topics", encodeURIComponent(topic), ...rest].join("/");
const BAR_SHARE_MAX = 8; // % of the width
const LABELS_MAX = 24;
let chosen = [];

export function start() {
  attach();
  on("lead-elsewhere", (button, { topic }) => leadElsewhere(topic));
  on("reassign", async (button, { topic }) => (await import("../reassign.js")).reassign(topic, chosen[0]));
  on("elect-leader", (button, { topic }) => electLeader(topic));
  document.addEventListener("comet:document", ({ detail }) => draw(detail.charts.by_partition, detail.fields.last));
  document.addEventListener("comet:selection", ({ detail }) => choose(detail.keys));
  choose([...(tableOf("partitions")?.picked ?? [])]); // rows selected before this script ran
}

function choose(keys) {
  chosen = keys.map(Number).sort((one, other) => one - other);
  const shown = document.querySelector("[data-chosen]");
  if (!shown) return;
  shown.hidden = !chosen.length;
  shown.querySelector("[data-chosen-text]").textContent = `${chosen.length} selected`;
  shown.querySelector("[data-action=reassign]").hidden = chosen.length !== 1;
}

// As topic_partitions.html draws them.
function draw(chart, last) {
  const figure = document.querySelector("[data-bars]");
  if (!figure || !chart) return;
  const values = chart.values[0] ?? [];
  const most = Math.max(...values, 0);
  const width = Math.min(80 / (values.length || 1), BAR_SHARE_MAX);
  const picture = figure.querySelector("svg[role=img]");
  if (picture.childElementCount !== values.length) {
    picture.replaceChildren(...values.map(() => svg("rect")));
    const ends = figure.querySelector("[data-bars-ends]");
    const few = values.length <= LABELS_MAX;
    ends.classList.toggle("two", !few);
    ends.replaceChildren(...(few ? [...values.keys()] : [0, last]).map((each) => el("span", {}, each)));
  }
  values.forEach((value, index) => {
    const share = most ? (100 * value) / most : 0;
    const bar = picture.children[index];
    bar.setAttribute("x", `${((100 * (index + 0.5)) / values.length - width / 2).toFixed(3)}%`);
    bar.setAttribute("y", `${(100 - share).toFixed(2)}%`);
    bar.setAttribute("width", `${width.toFixed(3)}%`);
    bar.setAttribute("height", `${share.toFixed(2)}%`);
  });
  figure.querySelector("[data-bars-summary]").textContent = chart.summary;
  figure.querySelector("[data-bars-unit]").textContent = chart.unit;
}

// ---- leadership

// Selects the new leader, then shows the changes, as the page of a broker does.
async function leadElsewhere(topic) {
  const { partitions } = await api("GET", at(topic));
  const moving = partitions.filter((each) => chosen.includes(each.partition));
  const able = (each) => each.in_sync.filter((broker) => broker !== each.leader && each.replicas.includes(broker));
  const fits = (broker) => moving.every((each) => each.leader === broker || able(each).includes(broker));
  const brokers = [...new Set(moving.flatMap(able))].filter(fits).sort((one, other) => one - other);
  if (!moving.some((each) => able(each).length)) return void toast("The selected partitions have no other replica in sync.", "warn");
  const title = moving.length === 1 ? `Move leadership of partition ${moving[0].partition}` : `Move leadership of ${many(moving.length, "partition")}`;
  const wanted = await form({
    title,
    action: "Review",
    fields: [
      {
        name: "broker", label: "New leader", type: "select",
        options: [["", "in-sync broker with the fewest leaders"], ...brokers.map((broker) => [broker, `broker ${broker}`])],
      },
    ],
  });
  if (!wanted) return;
  const broker = wanted.broker ? Number(wanted.broker) : null;
  const begun = await moveLeaders({
    title,
    note: "The new leader becomes the preferred leader. No data is copied or lost.",
    action: "Move leadership",
    partitions: moving.map(({ partition }) => ({ topic, partition, broker })),
  });
  if (begun?.changes) toast(`Moving leadership of ${many(begun.changes, "partition")} of ${topic}.`);
}

async function electLeader(topic) {
  const { partitions } = await api("GET", at(topic));
  const lost = partitions.find((each) => chosen.includes(each.partition) && each.leader === null);
  if (!lost) return void toast("The selected partitions have leaders; no election is needed.", "warn");
  const here = at(topic, "partitions", lost.partition);
  const { copies } = await api("GET", here);
  const wanted = await form({
    title: `Elect leader of partition ${lost.partition}`,
    note: "An unclean election: use it only if no replica with all committed records will come back. Records that the new leader lacks are lost permanently.",
    action: "Review",
    fields: [{ name: "broker", label: "New leader", type: "select", options: copies.map((copy) => [copy.broker, described(copy)]) }],
  });
  if (!wanted) return null;
  const body = { broker: Number(wanted.broker) };
  return confirm({
    title: `Elect broker ${body.broker} as leader of partition ${lost.partition}`,
    note: "Records that only other replicas hold are lost; those replicas delete them.",
    type: topic,
    action: "Accept data loss",
    load: async () => {
      const found = await api("POST", `${here}/elect-leader?dry_run=true`, { ...body, accept_loss: true });
      return [
        ["Records lost", found.lost === null ? "unknown: the brokers that hold them do not answer" : whole(found.lost)],
        ["Replicas", found.copies.map(described).join("; ")],
      ];
    },
    submit: async () => {
      await api("POST", `${here}/elect-leader`, { ...body, accept_loss: true });
      toast(`Broker ${body.broker} leads partition ${lost.partition}.`, "warn");
      return true;
    },
  });
}

function described(copy) {
  return `broker ${copy.broker}: ${copy.log_end === null ? "does not answer" : `has up to offset ${whole(copy.log_end)}`}`;
}
