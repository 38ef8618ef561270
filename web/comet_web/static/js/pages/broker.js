// The page of one broker: drain with progress, undo drain, resume, move leadership of selected partitions.

import { on } from "../actions.js";
import { confirmAct } from "../acts.js";
import { api } from "../api.js";
import { tableOf } from "../bind.js";
import { moveLeaders } from "../leaders.js";
import { live } from "../live.js";
import { toast } from "../toast.js";

const LISTED_MAX = 6;
const POLL_MS = 500;
const POLL_MAX_MS = 4_000;
const UNHEARD_MAX = 8; // polls of brokers that do not know of a drain started here yet
let chosen = [];
let shown = null; // the progress section of the drain being followed

export function start() {
  on("drain", (button, { broker }) => drain(broker));
  on("undo-drain", (button, { broker }) => undo(broker));
  on("resume", (button, { broker }) => resume(broker));
  on("move-leaders", (button, { broker }) => moveAway(broker));
  document.addEventListener("comet:selection", ({ detail }) => choose(detail.keys));
  choose([...(tableOf("logs")?.picked ?? [])]); // rows selected before this script ran
  document.addEventListener("comet:document", ({ detail }) => when(detail.fields));
  const button = document.querySelector('[data-action="undo-drain"]');
  if (!button.closest("[data-when-draining]").hidden) followDrain(button.dataset.broker);
}

const text = (cell) => (typeof cell === "string" ? cell : (cell?.t ?? ""));

// Shows parts of the page that depend on its being draining, down or failed.
function when(fields) {
  for (const name of ["draining", "up", "failed"]) {
    for (const node of document.querySelectorAll(`[data-when-${name}]`)) {
      node.hidden = node.getAttribute(`data-when-${name}`) !== text(fields[name]);
    }
  }
}

// ---- draining

function effect({ leading, staying, partitions, draining }) {
  const to = new Map();
  for (const each of partitions) if (each.to !== null) to.set(each.to, (to.get(each.to) ?? 0) + 1);
  const stays = partitions.filter((each) => each.to === null).map((each) => `${each.topic}/${each.partition}`);
  const goes = [...to].sort(([one], [other]) => one - other).map(([broker, count]) => `${count} to broker ${broker}`);
  return [
    ["Partitions led", leading.toLocaleString("en")],
    ["Handed over", goes.join(", ") || "none"],
    ["Not handed over", staying ? `${staying} without another replica in sync: ${listed(stays, staying)}` : "none"],
    ...(draining ? [["Already draining", "yes"]] : []),
  ];
}

function listed(names, count) {
  const some = names.slice(0, LISTED_MAX);
  return some.join(", ") + (count > some.length ? ` and ${count - some.length} more` : "");
}

async function drain(broker) {
  const done = await confirmAct("drainBroker", { broker }, { show: effect });
  if (done) {
    live.refresh();
    followDrain(broker, done.staying, UNHEARD_MAX);
  }
}

async function undo(broker) {
  const show = ({ leading }) => [["Partitions led now", leading.toLocaleString("en")]];
  const done = await confirmAct("undoDrain", { broker }, { show });
  if (done) {
    toast(`Broker ${broker} may lead again.`);
    live.refresh();
  }
}

async function resume(broker) {
  const show = ({ failed }) => failed.slice(0, LISTED_MAX).map((one) => [`${one.kind} ${one.name}`, one.reason]);
  const done = await confirmAct("resumeBroker", { broker }, { show });
  if (done) {
    toast(done.failed.length ? `${done.failed.length} still failed on broker ${broker}.` : `Broker ${broker} resumed ${done.resumed}.`, done.failed.length ? "warn" : "good");
    live.refresh();
  }
}

// Until it leads only partitions without another in-sync replica, or the drain ends. Polls less often while nothing moves:
// after a reload of the page the number of those partitions is unknown.
async function followDrain(broker, staying = 0, unheard = 0) {
  if (shown) return;
  const section = (shown = document.querySelector("[data-drain]"));
  const progress = section.querySelector("[data-drain-progress]");
  let [before, pause] = [null, POLL_MS];
  try {
    for (;;) {
      const answer = await api("GET", `/v1/brokers/${broker}`).catch(() => null); // the broker may come back
      if (answer && !answer.draining && (unheard -= 1) < 0) return;
      const found = answer?.draining ? answer : null;
      if (found) unheard = 0;
      const left = found ? Math.max(0, found.leading - staying) : before;
      pause = left === before ? Math.min(POLL_MAX_MS, 2 * pause) : POLL_MS;
      before = left;
      if (found) {
        progress.max = Math.max(progress.max, found.leading, 1);
        progress.value = progress.max - left;
        section.querySelector("[data-drain-text]").textContent = progressText(left, staying);
        section.hidden = false;
      }
      if (left === 0) {
        toast(staying ? `Broker ${broker} handed over all but ${staying}.` : `Broker ${broker} leads no partitions and can be stopped.`, staying ? "warn" : "good");
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  } finally {
    section.hidden = true;
    shown = null;
  }
}

function progressText(left, staying) {
  const stays = staying ? `; ${staying} without another replica in sync` : "";
  return `${left} ${left === 1 ? "partition" : "partitions"} left to hand over${stays}`;
}

// ---- leadership of selected partitions

function choose(keys) {
  chosen = keys;
  const bar = document.querySelector("[data-chosen]");
  bar.hidden = !chosen.length;
  bar.querySelector("[data-chosen-text]").textContent = `${chosen.length} selected`;
}

async function moveAway(broker) {
  const partitions = chosen.map((key) => {
    const cut = key.lastIndexOf("/");
    return { topic: key.slice(0, cut), partition: Number(key.slice(cut + 1)) };
  });
  const led = await ledBy(Number(broker), partitions);
  if (!led.length) return void toast("This broker leads none of the selected partitions.", "warn");
  const begun = await moveLeaders({
    title: led.length === 1 ? `Move leadership of ${led[0].topic}/${led[0].partition}` : `Move leadership of ${led.length} partitions`,
    note: "The in-sync broker with the fewest leaders takes over and becomes the preferred leader. No data is copied or lost.",
    action: "Move leadership",
    partitions: led,
  });
  if (begun?.changes) ended(begun.changes);
}

async function ledBy(broker, partitions) {
  const topics = [...new Set(partitions.map(({ topic }) => topic))];
  const found = await Promise.all(topics.map((topic) => api("GET", `/v1/topics/${encodeURIComponent(topic)}`)));
  const leaders = new Map(found.flatMap(({ name, partitions: each }) => each.map((one) => [`${name}/${one.partition}`, one.leader])));
  return partitions.filter(({ topic, partition }) => leaders.get(`${topic}/${partition}`) === broker);
}

function ended(changes) {
  toast(`Moving leadership of ${changes} ${changes === 1 ? "partition" : "partitions"}.`);
  live.refresh();
}
