// The stretch of time that all charts of a page show, and the ones shown before.
//
//   null                   each chart shows what it does by itself, up to now
//   {span_us, end_us}      so much, up to end_us; end_us null: up to the newest value, which it follows
//
// Ranges are {from_us, to_us}. `extent` is the range for which a chart has values.

const POINTS_MIN = 10; // that a view has room for
const BACK_MAX = 50;

let view = null;
const back = [];
const listeners = new Set();

export const shownView = () => view;
export const canGoBack = () => back.length > 0;

// Calls back after each change. Returns what ends that.
export function onView(changed) {
  listeners.add(changed);
  return () => listeners.delete(changed);
}

// Shows a range. While a gesture goes on, only its first step can be gone back to.
export function show(range, extent, { goesOn = false } = {}) {
  set({ span_us: range.to_us - range.from_us, end_us: range.to_us >= extent.to_us ? null : range.to_us }, goesOn);
}

export function showAll() {
  if (view) set(null, false);
}

export function goBack() {
  if (!back.length) return;
  view = back.pop();
  tell();
}

// Another page, or the same with other steps: nothing was shown of it.
export function forget() {
  if (!view && !back.length) return;
  view = null;
  back.length = 0;
  tell();
}

function set(next, goesOn) {
  if (!goesOn) {
    back.push(view);
    if (back.length > BACK_MAX) back.shift();
  }
  view = next;
  tell();
}

function tell() {
  for (const changed of listeners) changed();
}

// The range of the view in a chart's extent.
export function rangeOf(extent) {
  const to_us = view.end_us ?? extent.to_us;
  return { from_us: to_us - view.span_us, to_us };
}

// A range with `at_us` where it was, and `factor` times as long.
export function zoomed(range, extent, step_us, at_us, factor) {
  const span = range.to_us - range.from_us;
  const wanted = Math.max(Math.min(POINTS_MIN * step_us, extent.to_us - extent.from_us), span * factor);
  return within({ from_us: at_us - ((at_us - range.from_us) / span) * wanted, to_us: at_us + ((range.to_us - at_us) / span) * wanted }, extent);
}

export function moved(range, extent, by_us) {
  return within({ from_us: range.from_us + by_us, to_us: range.to_us + by_us }, extent);
}

// The same length inside the extent, or all of it.
export function within({ from_us, to_us }, extent) {
  const span = to_us - from_us;
  if (span >= extent.to_us - extent.from_us) return { ...extent };
  if (from_us < extent.from_us) return { from_us: extent.from_us, to_us: extent.from_us + span };
  if (to_us > extent.to_us) return { from_us: extent.to_us - span, to_us: extent.to_us };
  return { from_us, to_us };
}
