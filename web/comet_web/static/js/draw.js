// Drawing of charts: stateless functions on a canvas's context.
//
// `box` is the area of the data: {left, top, width, height, low, high, first, span}; it begins at value `first` and is
// `span` values wide. `x(index)` and `y(value)` come from `scales`.

export function scales(box) {
  const per = box.width / box.span;
  const shift = box.left + per * (0.5 - box.first);
  const factor = box.height / (box.high - box.low);
  const bottom = box.top + box.height;
  return { x: (index) => shift + index * per, y: (value) => bottom - (value - box.low) * factor, per };
}

// With more values than pixels: the mean, in a band from minimum to maximum.
export function line(context, box, values, { color, width = 1.5, fill = false, step = 0 }) {
  const { x, y } = scales(box);
  const { runs, dense } = thinned(values, box.width, step);
  context.strokeStyle = context.fillStyle = color;
  for (const run of runs) {
    if (dense) shape(context, run.map(([at, low]) => [x(at), y(low)]), run.map(([at, , high]) => [x(at), y(high)]), 0.22);
    if (fill) shape(context, run.map(([at]) => [x(at), y(Math.max(0, box.low))]), run.map(([at, , , mean]) => [x(at), y(mean)]), 0.1);
  }
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  for (const run of runs) {
    run.forEach(([at, , , mean], number) => (number ? context.lineTo(x(at), y(mean)) : context.moveTo(x(at), y(mean))));
    if (run.length === 1) context.lineTo(x(run[0][0]) + 1, y(run[0][3])); // one value between two gaps is still seen
  }
  context.stroke();
}

function shape(context, below, above, alpha) {
  context.globalAlpha = alpha;
  context.beginPath();
  for (const [x, y] of below) context.lineTo(x, y);
  for (const [x, y] of above.reverse()) context.lineTo(x, y);
  context.fill();
  context.globalAlpha = 1;
}

// Runs of [index, least, greatest, mean] between gaps, no more than there are pixels. `step` is the number of the last
// value since the epoch: stretches begin at round ones, so that a line keeps its shape while it moves on.
export function thinned(values, pixels, step = 0) {
  const runs = [];
  const stride = Math.max(1, Math.ceil(values.length / Math.max(1, pixels)));
  const first = step - values.length + 1;
  let run = null;
  for (let from = -(((first % stride) + stride) % stride); from < values.length; from += stride) {
    const to = Math.min(values.length, from + stride);
    let [low, high, sum, count] = [Infinity, -Infinity, 0, 0];
    for (let at = Math.max(0, from); at < to; at += 1) {
      const value = values[at];
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
      sum += value;
      count += 1;
    }
    if (!count) {
      run = null;
      continue;
    }
    if (!run) runs.push((run = []));
    run.push([Math.max(0, Math.min(values.length - 1, from + (stride - 1) / 2)), low, high, sum / count]);
  }
  return { runs, dense: stride > 1 };
}

// Each line on top of those before it. An unknown value counts as 0 where another is known.
export function stacked(lines) {
  const below = new Array(lines[0]?.length ?? 0).fill(null);
  return lines.map((values) =>
    values.map((value, at) => (value === null && below[at] === null ? null : (below[at] = (below[at] ?? 0) + (value ?? 0)))),
  );
}

export function area(context, box, tops, bottoms, { color }) {
  const { x, y } = scales(box);
  let from = 0;
  while (from < tops.length) {
    if (tops[from] === null) {
      from += 1;
      continue;
    }
    let to = from;
    while (to + 1 < tops.length && tops[to + 1] !== null) to += 1;
    context.beginPath();
    context.moveTo(x(from), y(bottoms?.[from] ?? 0));
    for (let at = from; at <= to; at += 1) context.lineTo(x(at), y(tops[at]));
    for (let at = to; at >= from; at -= 1) context.lineTo(x(at), y(bottoms?.[at] ?? 0));
    context.globalAlpha = 0.22;
    context.fillStyle = color;
    context.fill();
    context.globalAlpha = 1;
    from = to + 1;
  }
}

export function bars(context, box, tops, bottoms, { color, alpha = 0.8 }) {
  const { x, y, per } = scales(box);
  const width = Math.max(1, per * 0.72);
  context.fillStyle = color;
  context.globalAlpha = alpha;
  tops.forEach((top, at) => {
    if (top === null) return;
    const [high, low] = [y(top), y(bottoms?.[at] ?? 0)];
    context.fillRect(x(at) - width / 2, high, width, Math.max(0, low - high));
  });
  context.globalAlpha = 1;
}

// Rising candles are hollow, falling ones filled.
export function candles(context, box, [open, high, low, close], { up, down }) {
  const { x, y, per } = scales(box);
  const width = Math.max(1, Math.min(14, per * 0.64));
  context.lineWidth = 1;
  for (let at = 0; at < open.length; at += 1) {
    if (open[at] === null || close[at] === null) continue;
    const rises = close[at] >= open[at];
    const middle = Math.round(x(at)) + 0.5;
    const [top, bottom] = [y(Math.max(open[at], close[at])), y(Math.min(open[at], close[at]))];
    context.strokeStyle = context.fillStyle = rises ? up : down;
    context.beginPath();
    context.moveTo(middle, y(high[at]));
    context.lineTo(middle, top);
    context.moveTo(middle, bottom);
    context.lineTo(middle, y(low[at]));
    context.stroke();
    const body = [middle - width / 2, top, width, Math.max(1, bottom - top)];
    if (rises && width > 3) context.strokeRect(...body);
    else context.fillRect(...body);
  }
}

// The labels are on the left, or on the right.
export function grid(context, box, values, written, { line: stroke, text, font, side = "left" }) {
  const { y } = scales(box);
  context.strokeStyle = stroke;
  context.fillStyle = text;
  context.lineWidth = 1;
  context.font = font;
  context.textAlign = side === "left" ? "right" : "left";
  context.textBaseline = "middle";
  const labels = side === "left" ? box.left - 8 : box.left + box.width + 8;
  values.forEach((value, index) => {
    const at = Math.round(y(value)) + 0.5;
    context.beginPath();
    context.moveTo(box.left, at);
    context.lineTo(box.left + box.width, at);
    context.stroke();
    context.fillText(written[index], labels, at);
  });
}

export function times(context, box, below, found, { text, font }) {
  context.fillStyle = text;
  context.font = font;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const { x, label } of found) {
    const half = context.measureText(label).width / 2;
    context.fillText(label, Math.max(box.left + half, Math.min(box.left + box.width - half, x)), below);
  }
}

// The names of lines at their ends, apart from each other: [{y, text, color}].
export function ends(context, box, found, { font }) {
  const apart = parseInt(font, 10) + 1;
  const placed = [...found].sort((one, other) => one.y - other.y);
  placed.forEach((each, at) => (each.at = at ? Math.max(each.y, placed[at - 1].at + apart) : Math.max(each.y, box.top + 4)));
  const over = Math.max(0, (placed.at(-1)?.at ?? 0) - (box.top + box.height - 2));
  context.font = font;
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const { at, text, color } of placed) {
    context.fillStyle = color;
    context.fillText(text, box.left + box.width + 6, at - over);
  }
}

// An event: a dashed line with a flag on top.
export function mark(context, box, x, { color }) {
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(x, box.top);
  context.lineTo(x, box.top + box.height);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x - 4, box.top);
  context.lineTo(x + 4, box.top);
  context.lineTo(x, box.top + 6);
  context.fill();
}

// A value on the scale, as a filled label that the data cannot cover.
export function tag(context, x, y, label, { color, text, font, align = "left" }) {
  context.font = font;
  const height = parseInt(font, 10) + 6;
  const width = context.measureText(label).width + 8;
  const left = Math.max(0, align === "left" ? x : align === "right" ? x - width : x - width / 2);
  context.fillStyle = color;
  context.fillRect(left, y - height / 2, width, height);
  context.fillStyle = text;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(label, left + 4, y);
}

// A dashed line across the data.
export function level(context, box, y, { color }) {
  const at = Math.round(y) + 0.5;
  context.setLineDash([3, 3]);
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(box.left, at);
  context.lineTo(box.left + box.width, at);
  context.stroke();
  context.setLineDash([]);
}

// What `draw` paints on the left and right of the data is not seen.
export function clipped(context, box, height, draw) {
  context.save();
  context.beginPath();
  context.rect(box.left, 0, box.width, height);
  context.clip();
  draw();
  context.restore();
}
