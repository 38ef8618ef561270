// Notices of alerts as notifications of this browser, where a user switched them on. Any open page shows them, also a
// hidden one as long as the browser lets it run; several pages of one address show each notice once, by its tag.

import { root } from "./el.js";
import { live } from "./live.js";
import { store, stored } from "./stored.js";

const NAME = "notify";
const TITLES = { firing: "Firing", resolved: "Resolved", test: "Test" };
let channel = null;

// "granted", "denied", "default" (not asked yet), "unsupported".
export function permission() {
  return "Notification" in window && isSecureContext ? Notification.permission : "unsupported";
}

// Whether this browser shows notices.
export const shows = () => permission() === "granted" && Boolean(stored(NAME));

// Asks the user, after a click. Resolves to the permission.
export async function request() {
  const found = permission() === "default" ? await Notification.requestPermission() : permission();
  if (found === "granted") {
    store(NAME, true);
    listen();
  }
  return found;
}

export function stop() {
  store(NAME, null);
  channel?.close();
  channel = null;
  live.stay(false);
}

// Called by each page once it runs.
export function listen() {
  if (channel || !shows()) return;
  live.stay(true);
  channel = live.open("alerts", {}, (notice) => notice && show(notice));
}

function show({ id, event, name, text, severity }) {
  const made = new Notification(`${TITLES[event] ?? event}: ${name}`, { body: text, tag: id, requireInteraction: severity === "critical" && event === "firing" });
  made.addEventListener("click", () => {
    focus();
    location.assign(`${root}/alerts`);
  });
}
