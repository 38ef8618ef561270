// Pointer, wheel and keys on a chart.
//
//                 charts of figures    candles
//   drag          selects a range      pans           shift: the other of the two; a finger always pans
//   wheel         scrolls the page     zooms          ctrl, or a pinch: zooms; sideways, or shift: pans
//   double click  shows all
//   keys          arrows, Home, End: the cursor; + and -: zoom; Page Up and Down: pan; 0: all; Backspace: back

import { goBack, moved, show, showAll, zoomed } from "./time_view.js";

const DRAG_PIXELS = 4; // less is a click
const SELECT_PIXELS = 8;
const WHEEL = 0.0015; // of the logarithm of the length, for a pixel of scrolling
const PINCH = 0.01; // as a trackpad tells of it
const WHEEL_GAP_MS = 400; // what comes sooner belongs to the same gesture
const LINE_PIXELS = 16;
const STEP = 0.7; // of a key or button

export function follow(chart) {
  const { canvas } = chart;
  const fingers = new Map(); // pointers that are down, by id: their x
  let drag = null; // {from_x, mode, range, moving}
  let pinch = null; // {range, apart, at_us}
  let wheeled = -Infinity;

  canvas.addEventListener("wheel", (event) => {
    if (!chart.box || !chart.count) return;
    const scale = event.deltaMode === 1 ? LINE_PIXELS : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    const zooms = event.ctrlKey || event.metaKey || chart.isCandle;
    if (!sideways && !zooms) return;
    event.preventDefault();
    const goesOn = event.timeStamp - wheeled < WHEEL_GAP_MS;
    wheeled = event.timeStamp;
    if (sideways) return pan(chart, sideways * scale, goesOn);
    const factor = Math.exp(event.deltaY * scale * (event.ctrlKey ? PINCH : WHEEL));
    zoom(chart, factor, chart.timeOf(event.offsetX), goesOn);
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (!chart.box || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
    if (fingers.size === 2) {
      const [one, other] = [...fingers.values()];
      chart.select(null);
      pinch = { range: chart.range, apart: Math.max(1, Math.abs(one - other)), at_us: chart.timeOf((one + other) / 2), goesOn: Boolean(drag?.moving) };
      drag = null;
    } else if (fingers.size === 1) {
      const pans = event.pointerType === "touch" || chart.isCandle !== event.shiftKey;
      drag = { from_x: event.offsetX, mode: pans ? "pan" : "select", range: chart.range, moving: false };
    }
  });

  canvas.addEventListener("pointermove", (event) => {
    if (!chart.box) return;
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.offsetX);
    if (pinch && fingers.size === 2) return pinched();
    if (drag && (drag.moving || Math.abs(event.offsetX - drag.from_x) > DRAG_PIXELS)) dragged(event.offsetX);
    if (!drag?.moving) chart.pointAt(chart.timeOf(event.offsetX), event.offsetY);
  });

  function pinched() {
    const [one, other] = [...fingers.values()];
    const { extent, data } = chart;
    const range = zoomed(pinch.range, extent, data.step_s * 1e6, pinch.at_us, pinch.apart / Math.max(1, Math.abs(one - other)));
    const to_us = range.from_us + (((one + other) / 2 - chart.box.left) / chart.box.width) * (range.to_us - range.from_us);
    show(moved(range, extent, pinch.at_us - to_us), extent, { goesOn: pinch.goesOn });
    pinch.goesOn = true;
  }

  function dragged(x) {
    if (!drag.moving) chart.hideCursor();
    if (drag.mode === "select") chart.select([drag.from_x, x]);
    else {
      const { from_us, to_us } = drag.range;
      const by_us = ((drag.from_x - x) / chart.box.width) * (to_us - from_us);
      show(moved(drag.range, chart.extent, by_us), chart.extent, { goesOn: drag.moving });
    }
    drag.moving = true;
    canvas.classList.toggle("panning", drag.mode === "pan");
  }

  function released(event) {
    if (!fingers.delete(event.pointerId)) return;
    const done = drag;
    drag = pinch = null;
    canvas.classList.remove("panning");
    if (done?.mode !== "select" || !done.moving) return;
    chart.select(null);
    if (event.type === "pointercancel" || Math.abs(event.offsetX - done.from_x) < SELECT_PIXELS) return;
    const [from_us, to_us] = [done.from_x, event.offsetX].map((x) => chart.timeOf(x)).sort((one, other) => one - other);
    const { extent, data } = chart;
    const wanted = { from_us: Math.max(extent.from_us, from_us), to_us: Math.min(extent.to_us, to_us) };
    show(zoomed(wanted, extent, data.step_s * 1e6, (from_us + to_us) / 2, 1), extent);
  }

  canvas.addEventListener("pointerup", released);
  canvas.addEventListener("pointercancel", released);
  canvas.addEventListener("pointerleave", () => chart.hideCursor());
  canvas.addEventListener("blur", () => chart.hideCursor());
  canvas.addEventListener("dblclick", showAll);
  canvas.addEventListener("keydown", (event) => key(chart, event));
}

// A factor below 1 shows less.
export function zoom(chart, factor, at_us = null, goesOn = false) {
  const { extent, range, data } = chart;
  const { cursorTime } = chart;
  const inside = cursorTime !== null && cursorTime >= range.from_us && cursorTime <= range.to_us;
  // The newest value stays where it is, if it is shown and nothing else is pointed at.
  const fixed = at_us ?? (inside ? cursorTime : range.to_us >= extent.to_us ? extent.to_us : (range.from_us + range.to_us) / 2);
  show(zoomed(range, extent, data.step_s * 1e6, fixed, factor), extent, { goesOn });
}

export const zoomIn = (chart) => zoom(chart, STEP);
export const zoomOut = (chart) => zoom(chart, 1 / STEP);

function pan(chart, pixels, goesOn = false) {
  const { from_us, to_us } = chart.range;
  show(moved(chart.range, chart.extent, (pixels / chart.box.width) * (to_us - from_us)), chart.extent, { goesOn });
}

function key(chart, event) {
  if (!chart.count || !chart.shown || event.ctrlKey || event.metaKey || event.altKey) return;
  const far = event.shiftKey ? 10 : 1;
  const acts = {
    ArrowLeft: () => chart.stepCursor(-far),
    ArrowRight: () => chart.stepCursor(far),
    Home: () => chart.pointAt(chart.range.from_us),
    End: () => chart.pointAt(chart.range.to_us),
    "+": () => zoomIn(chart),
    "=": () => zoomIn(chart),
    "-": () => zoomOut(chart),
    PageUp: () => pan(chart, -chart.box.width / 2),
    PageDown: () => pan(chart, chart.box.width / 2),
    0: showAll,
    Backspace: goBack,
    Escape: () => chart.hideCursor(),
  };
  if (!Object.hasOwn(acts, event.key)) return;
  if (event.key !== "Escape") event.preventDefault();
  acts[event.key]();
}
