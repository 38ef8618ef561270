// Changes the query of the page without loading it again: sort, filter, range, page of a table.
//
// Links with `data-soft`, and those in the rows of a table below [data-soft-rows], are followed this way. The address always matches the content; Back works.

import { root } from "./el.js";
import { live } from "./live.js";
import { forget } from "./time_view.js";

const STRETCH = ["range", "step"]; // parameters by which charts have other values

export function navigate(url, { replace = false } = {}) {
  const to = new URL(url, location.href);
  if (to.origin !== location.origin || to.pathname !== location.pathname || !live.connected) {
    return void location.assign(to);
  }
  if (STRETCH.some((name) => to.searchParams.get(name) !== new URLSearchParams(location.search).get(name))) forget();
  if (to.search !== location.search) history[replace ? "replaceState" : "pushState"](null, "", to);
  show();
}

// The address of this page with changed parameters; null or "" removes one.
export function withQuery(changed) {
  const to = new URL(location.href);
  for (const [name, value] of Object.entries(changed)) {
    if (value === null || value === "") to.searchParams.delete(name);
    else to.searchParams.set(name, value);
  }
  return to.pathname + to.search;
}

export function here() {
  const path = location.pathname.slice(root.length) || "/";
  return path + location.search;
}

function show() {
  choices();
  document.getElementById("main").setAttribute("aria-busy", "true");
  live.watch(here());
}

function choices() {
  const query = new URLSearchParams(location.search);
  for (const group of document.querySelectorAll("[data-choices]")) {
    const name = group.dataset.choices;
    const links = [...group.querySelectorAll("[data-choice]")];
    const chosen = query.get(name) ?? links[0]?.dataset.choice;
    for (const [index, link] of links.entries()) {
      const { choice } = link.dataset;
      link.href = withQuery({ [name]: index === 0 ? null : choice });
      if (choice === chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-soft], [data-soft-rows] tbody a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  navigate(link.href);
});
addEventListener("popstate", show);
