// Marks tables that fit their frame: their head stays in sight while the page is scrolled.

export function fit(frame) {
  const table = frame.querySelector("table");
  if (!table) return;
  const observer = new ResizeObserver(() => frame.classList.toggle("fits", table.offsetWidth <= frame.clientWidth));
  observer.observe(frame);
  observer.observe(table);
}
