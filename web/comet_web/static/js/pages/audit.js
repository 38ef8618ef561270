// The page of the audit log: filters, and new events at the top unless the pointer or the focus is among the rows.

import { navigate, withQuery } from "../navigate.js";

const TYPING_MS = 250;
const NAMES = ["principal", "event", "outcome"];

export function start() {
  const asked = document.querySelector("[data-events]");
  const table = document.querySelector("[data-table=events]");
  const follow = () => {
    const chosen = Object.fromEntries(NAMES.map((name) => [name, asked.elements[name].value.trim()]));
    const url = withQuery({ ...chosen, page: null });
    if (url !== location.pathname + location.search) navigate(url, { replace: true });
  };
  let typing = 0;
  asked.addEventListener("input", ({ target }) => {
    clearTimeout(typing);
    typing = setTimeout(follow, target.name === "principal" ? TYPING_MS : 0);
  });
  asked.addEventListener("submit", (event) => {
    event.preventDefault();
    follow();
  });
  asked.querySelector("[data-all]").addEventListener("click", () => asked.querySelectorAll("input, select").forEach((each) => (each.value = "")));
  document.addEventListener("comet:document", () => {
    const button = table.querySelector("[data-changed]");
    if (!button.hidden && !table.querySelector(".frame").matches(":hover, :focus-within")) button.click();
  });
  addEventListener("popstate", () => {
    const query = new URLSearchParams(location.search);
    for (const name of NAMES) asked.elements[name].value = query.get(name) ?? "";
  });
}
