// Starts every page: adds updates and actions to the HTML.

import "./actions.js";
import { put, putProblem } from "./bind.js";
import { copy } from "./clipboard.js";
import { icon, root } from "./el.js";
import { fit } from "./fit.js";
import { listen, showKeys } from "./keys.js";
import { live } from "./live.js";
import { here, navigate } from "./navigate.js";
import { stored, wanted } from "./stored.js";
import { nextTheme } from "./theme.js";
import { say } from "./toast.js";

const page = document.documentElement;
const WORDS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", stale: "Stale", paused: "Paused" };
const TITLES = {
  live: "Data is up to date",
  reconnecting: "Connection to the gateway lost; reconnecting",
  stale: "No update for the time shown; data may be outdated",
  paused: "Updates are paused",
};
const AGAIN_MS = 1_000; // between two checks for the gateway
const STILL = new Set(["api", "error", "login"]); // without updates
const ICONS = { stale: "warn", reconnecting: "refresh", paused: "pause" };

document.addEventListener("comet:document", (event) => put(event.detail, event.fresh));
document.addEventListener("comet:problem", (event) => putProblem(event.detail));
document.addEventListener("comet:live", (event) => pill(event.detail));

let announced = "";

function pill({ state, seconds }) {
  page.dataset.live = state;
  const shown = document.querySelector("[data-pill]");
  if (!shown) return;
  const text = state === "stale" ? `Stale ${seconds} s` : WORDS[state];
  shown.querySelector("[data-pill-text]").textContent = text;
  if (shown.dataset.state === state) return;
  shown.dataset.state = state;
  shown.title = TITLES[state] ?? "";
  shown.querySelector("svg").replaceWith(icon(ICONS[state] ?? "live"));
  document.dispatchEvent(new CustomEvent("comet:theme")); // charts are grey when they are stale
  if (announced && announced !== state) say(`Updates: ${WORDS[state]}`);
  announced = state;
}

function pause() {
  const button = document.querySelector("[data-pause]");
  if (!button) return;
  if (live.paused) live.resume();
  else live.pause();
  button.setAttribute("aria-pressed", String(live.paused));
  button.setAttribute("aria-label", live.paused ? "Resume updates" : "Pause updates");
  button.title = `${live.paused ? "Resume" : "Pause"} updates (space)`;
  button.replaceChildren(icon(live.paused ? "play" : "pause"));
}

const palette = async () => (await import("./palette.js")).open();

function theme() {
  say(`Theme: ${nextTheme()}`);
}

document.addEventListener("click", async (event) => {
  const found = (name) => event.target.closest?.(`[data-${name}]`);
  if (found("pause")) pause();
  else if (found("theme-next")) theme();
  else if (found("keys")) showKeys();
  else if (found("palette")) palette();
  else if (found("copy")) await copy(found("copy").dataset.copy);
  for (const open of document.querySelectorAll("details.chooser[open]")) {
    if (!event.composedPath().includes(open)) open.open = false; // also if the target is gone meanwhile
  }
});

// A gateway that stops while a page loads leaves half of it. The page is reloaded once the gateway answers; only once, as
// a second half page may mean another error.
async function whole(load) {
  try {
    return await load();
  } catch (error) {
    if (performance.getEntriesByType("navigation")[0]?.type === "reload") throw error;
    while (!(await fetch(location.href, { method: "HEAD" }).catch(() => null))?.ok) await passed(AGAIN_MS);
    location.reload();
    return new Promise(() => {}); // the page is being reloaded
  }
}

const passed = (ms) => new Promise((done) => setTimeout(done, ms));

for (const frame of document.querySelectorAll(".frame:not([data-rows])")) fit(frame);
listen({ pause, theme, palette });
if (!STILL.has(page.dataset.page)) {
  live.watch(here());
  live.start();
}
if (stored("notify") && !STILL.has(page.dataset.page)) import("./notify.js").then(({ listen: hear }) => hear());
const { script } = page.dataset;
if (script) (await whole(() => import(`./pages/${script}.js`))).start({ live, root, page: page.dataset.page, navigate });
page.dataset.ready = ""; // buttons work now
if (wanted()) (await import("./palette.js")).press();
