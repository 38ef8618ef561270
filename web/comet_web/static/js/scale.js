// Axes of charts: round steps, figures and times, written as in comet_web/components/numbers.py.

import { store, stored } from "./stored.js";

const STEPS = ["", "k", "M", "G", "T", "P"];
const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIMES_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

const DAY_S = 86_400;
const MINUTE_MS = 60_000;

export const DASH = "–";

// The zone of a chart's times: "UTC", as everywhere else, or "local".
let zone = stored("chart.zone", "UTC");

export const chartZone = () => zone;

export function setChartZone(chosen) {
  zone = chosen;
  store("chart.zone", chosen === "UTC" ? null : chosen);
  document.dispatchEvent(new CustomEvent("comet:theme")); // charts are drawn again
}

// Three significant digits: 0, 0.25, 12.3, 1.23 k.
export function short(value, unit = "") {
  if (value === null || value === undefined) return DASH;
  const names = isBytes(unit) ? BYTES : STEPS;
  let size = Math.abs(value);
  let step = 0;
  while (size >= 999.5 && step < names.length - 1) {
    size /= 1000;
    step += 1;
  }
  const digits = size >= 99.95 || (step === 0 && Number.isInteger(size)) ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "-" : ""}${size.toFixed(digits)}${names[step] ? " " : ""}${names[step]}`;
}

// A price with the digits in which prices of that span differ.
export function price(value, span) {
  if (value === null || value === undefined) return DASH;
  const digits = span > 0 ? Math.min(8, Math.max(2, 2 - Math.floor(Math.log10(span)))) : 2;
  return value.toFixed(digits);
}

function isBytes(unit) {
  return unit === "B" || unit === "bytes" || unit.startsWith("B/");
}

// Round values from low to high, about `count` of them.
export function ticks(low, high, count) {
  const step = stepOf(high - low, count);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

// The top of an axis that begins at 0: its last grid line.
export function ceiling(value, count) {
  if (!(value > 0)) return 1;
  const step = stepOf(value * 1.02, count);
  return Math.ceil((value * 1.02) / step - 1e-9) * step;
}

function stepOf(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * power;
}

// As short() writes it, without trailing zeros.
export function tick(value, unit) {
  return short(value, unit).replace(/\.(\d*?)0+(?= |$)/, (_, digits) => (digits ? `.${digits}` : ""));
}

// Times of the axis, in µs, for `width` pixels: round ones in the chart's zone.
export function timeTicks(from_us, to_us, width) {
  const span_s = (to_us - from_us) / 1e6;
  const step = TIMES_S.find((each) => (each / span_s) * width >= 76) ?? DAY_S * Math.ceil((span_s * 76) / width / DAY_S);
  const shift_s = offset_ms(to_us) / 1000;
  const found = [];
  for (let at = Math.ceil((from_us / 1e6 + shift_s) / step) * step; (at - shift_s) * 1e6 <= to_us; at += step) found.push((at - shift_s) * 1e6);
  return { found, seconds: step < 60 };
}

// In the chart's zone.
export function clock(time_us, seconds = true) {
  return new Date(time_us / 1000 + offset_ms(time_us)).toISOString().slice(11, seconds ? 19 : 16);
}

// The same for an axis, where midnight is the new day.
export function tickText(time_us, seconds) {
  const text = clock(time_us, seconds);
  return clock(time_us) === "00:00:00" ? new Date(time_us / 1000 + offset_ms(time_us)).toISOString().slice(5, 10) : text;
}

// With the day and the zone.
export function fullClock(time_us) {
  const shift = offset_ms(time_us);
  const moment = new Date(time_us / 1000 + shift).toISOString().slice(0, 19).replace("T", " ");
  return `${moment} ${zone === "UTC" ? "UTC" : offsetText(shift)}`;
}

function offset_ms(time_us) {
  return zone === "UTC" ? 0 : -new Date(time_us / 1000).getTimezoneOffset() * MINUTE_MS;
}

function offsetText(shift_ms) {
  const minutes = Math.abs(shift_ms) / MINUTE_MS;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${shift_ms < 0 ? "-" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}
