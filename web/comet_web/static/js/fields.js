// The choice of JSON fields as columns of records. It is in the address, and remembered in this browser for the topic;
// early.js adds it to an address without one.

import { withQuery } from "./navigate.js";
import { store } from "./stored.js";

export function fields(section) {
  const { topic } = section.dataset;
  const boxes = [...section.querySelectorAll("[data-field-of]")];
  const show = (names) => {
    const text = names.join(",");
    store(`fields.${topic}`, text || null);
    location.assign(withQuery({ fields: text }));
  };
  const chosen = () => boxes.filter((box) => box.checked).map((box) => box.dataset.fieldOf);
  for (const box of boxes) box.addEventListener("change", () => show(chosen()));
  const add = section.querySelector("[data-field-add]");
  add.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !add.value.trim()) return;
    event.preventDefault();
    show([...new Set([...chosen(), add.value.trim()])]);
  });
}
