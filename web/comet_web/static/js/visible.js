// The part of a chart's values that is drawn: those of a range of time, several as one where there are more than fit.
//
// {values, count, start_us, step_us, first, span}: value i fills the time from start_us + i * step_us on, for step_us;
// the range begins at value `first` and is `span` values long (both with fractions).

// The pixels that a value takes at least; lines thin themselves out as they are drawn.
const PIXELS = { candle: 3, bar: 3, area: 1, line: 0 };
const CANDLE = [first, greatest, least, last, sum]; // open, high, low, close, volume

export function extentOf({ values, step_s, end_us }) {
  const half = step_s * 5e5; // a value stands in the middle of its time
  return { from_us: end_us - (values[0].length - 1) * step_s * 1e6 - half, to_us: end_us + half };
}

export function visible(data, range, pixels) {
  const { kind, values, step_s, end_us } = data;
  const count = values[0].length;
  const step_us = step_s * 1e6;
  const from_us = extentOf(data).from_us;
  const first = (range.from_us - from_us) / step_us;
  const span = (range.to_us - range.from_us) / step_us;
  const size = Math.max(1, Math.ceil((PIXELS[kind] * span) / Math.max(1, pixels)));
  const number = Math.round(end_us / step_us) - count + 1; // of the first value since the epoch: groups keep their values
  let low = Math.max(0, Math.floor(first) - 1);
  low -= modulo(number + low, size);
  const high = Math.min(count, Math.ceil(first + span) + 1);
  const whole = low <= 0 && high >= count;
  const cut = values.map((line, at) => {
    if (size > 1) return grouped(line, low, high, size, kind === "candle" ? (CANDLE[at] ?? last) : mean);
    return whole ? line : line.slice(low, high);
  });
  return {
    values: cut,
    count: cut[0].length,
    start_us: from_us + low * step_us,
    step_us: size * step_us,
    first: (first - low) / size,
    span: span / size,
    number: number + high - 1, // of the last value
  };
}

// The first group may begin before the first value.
function grouped(line, low, high, size, merge) {
  const found = [];
  for (let at = low; at < high; at += size) found.push(merge(line, Math.max(0, at), Math.min(high, at + size)));
  return found;
}

const modulo = (value, by) => ((value % by) + by) % by;

function first(line, from, to) {
  for (let at = from; at < to; at += 1) if (known(line[at])) return line[at];
  return null;
}

function last(line, from, to) {
  for (let at = to - 1; at >= from; at -= 1) if (known(line[at])) return line[at];
  return null;
}

function greatest(line, from, to) {
  return reduced(line, from, to, Math.max);
}

function least(line, from, to) {
  return reduced(line, from, to, Math.min);
}

function sum(line, from, to) {
  return reduced(line, from, to, (one, other) => one + other);
}

function mean(line, from, to) {
  let count = 0;
  for (let at = from; at < to; at += 1) if (known(line[at])) count += 1;
  return count ? sum(line, from, to) / count : null;
}

function reduced(line, from, to, merge) {
  let found = null;
  for (let at = from; at < to; at += 1) if (known(line[at])) found = found === null ? line[at] : merge(found, line[at]);
  return found;
}

const known = (value) => value !== null && value !== undefined;
