// The buttons of a chart, its table, and what it saves: a picture, or CSV of the values that are shown.

import { zoomIn, zoomOut } from "./chart_gestures.js";
import { el } from "./el.js";
import { chartZone, fullClock, setChartZone } from "./scale.js";
import { canGoBack, goBack, onView, show, showAll, shownView, within } from "./time_view.js";

const TABLE_ROWS = 60;

const ACTS = {
  back: goBack,
  in: zoomIn,
  out: zoomOut,
  all: showAll,
  range: chooseRange,
  zone: () => setChartZone(chartZone() === "UTC" ? "local" : "UTC"),
  full: fullScreen,
  picture: savePicture,
  csv: saveCsv,
};

export function tools(chart) {
  const { figure } = chart;
  const bar = figure.querySelector("[data-tools]");
  figure.querySelector(".as-table")?.addEventListener("toggle", (event) => event.target.open && chart.shown && writeTable(chart));
  if (!bar) return;
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("[data-tool]");
    if (button && chart.shown) ACTS[button.dataset.tool](chart);
  });
  const changed = () => {
    bar.querySelector('[data-tool="back"]').disabled = !canGoBack();
    bar.querySelector('[data-tool="all"]').disabled = !shownView();
  };
  const zone = () => {
    bar.querySelector('[data-tool="zone"]').textContent = chartZone() === "UTC" ? "UTC" : "Local";
  };
  onView(changed);
  document.addEventListener("comet:theme", zone);
  changed();
  zone();
}

// ---- a range by its two ends

async function chooseRange(chart) {
  const { extent, range } = chart;
  const at = (time_us) => fullClock(time_us).slice(0, 19).replace(" ", "T");
  const read = (text) => new Date(chartZone() === "UTC" ? `${text}Z` : text).getTime() * 1000;
  const inside = (text) => (read(text) >= extent.from_us - 1e6 && read(text) <= extent.to_us + 1e6 ? "" : `from ${fullClock(extent.from_us)} to ${fullClock(extent.to_us)}`);
  const shared = { type: "datetime-local", step: 1, required: true, check: inside };
  const { form } = await import("./dialog.js");
  await form({
    title: "Time range",
    note: chartZone() === "UTC" ? "In UTC." : "In local time.",
    action: "Show",
    fields: [
      { name: "from", label: "From", value: at(range.from_us), ...shared },
      { name: "to", label: "To", value: at(range.to_us), ...shared },
    ],
    submit: async ({ from, to }) => {
      const [from_us, to_us] = [read(from), read(to)].sort((one, other) => one - other);
      const { step_s } = chart.data;
      show(within({ from_us, to_us: Math.max(to_us, from_us + step_s * 1e6) }, extent), extent);
      return true;
    },
  });
}

// ---- larger

function fullScreen({ figure }) {
  if (document.fullscreenElement) document.exitFullscreen();
  else figure.requestFullscreen();
}

// ---- what is saved

function savePicture(chart) {
  const { canvas, figure } = chart;
  const picture = el("canvas", { width: canvas.width, height: canvas.height });
  const context = picture.getContext("2d");
  context.fillStyle = chart.colors.surface;
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(canvas, 0, 0);
  picture.toBlob((found) => save(found, `${figure.dataset.chart}.png`));
}

// The values as they came, at their own times, in range.
function saveCsv(chart) {
  const { names, values, step_s, end_us } = chart.data;
  const { from_us, to_us } = chart.range;
  const lines = [["time", ...names].map(quoted).join(",")];
  for (let at = 0; at < chart.count; at += 1) {
    const time_us = end_us - (chart.count - 1 - at) * step_s * 1e6;
    if (time_us < from_us || time_us > to_us) continue;
    lines.push([new Date(time_us / 1000).toISOString(), ...values.map((each) => each[at] ?? "")].join(","));
  }
  save(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), `${chart.figure.dataset.chart}.csv`);
}

const quoted = (name) => (/[",\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);

function save(blob, name) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  URL.revokeObjectURL(href);
}

// The shown stretch, newest first.
function writeTable(chart) {
  const { values, count, step_us } = chart.shown;
  const stride = Math.max(1, Math.ceil(count / TABLE_ROWS));
  const rows = [];
  for (let at = count - 1; at >= 0; at -= stride) {
    rows.push(el("tr", {}, el("td", {}, fullClock(chart.stamp(at))), values.map((each, line) => el("td", { class: "n" }, chart.written(each[at], line)))));
  }
  const names = chart.data.names.map((name) => el("th", { scope: "col", class: "n" }, name));
  const head = el("tr", {}, el("th", { scope: "col" }, `Time, every ${(stride * step_us) / 1e6} s`), names);
  chart.figure.querySelector("[data-rows]").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}
