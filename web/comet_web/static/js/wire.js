// Applies a delta of comet_web/delta.py to a document. Pure: unchanged parts stay the same objects, so that views compare
// by ===.

export function apply(before, delta) {
  return {
    ...before,
    time_us: delta.time_us ?? before.time_us,
    fields: parts(before.fields, delta.fields, delta.gone_fields, (_, cell) => cell),
    tables: parts(before.tables, delta.tables, delta.gone_tables, table),
    charts: parts(before.charts, delta.charts, delta.gone_charts, chart),
  };
}

function parts(before, deltas, gone, one) {
  if (!deltas && !gone) return before;
  const after = { ...before };
  for (const [id, delta] of Object.entries(deltas ?? {})) after[id] = one(before[id], delta);
  for (const id of gone ?? []) delete after[id];
  return after;
}

function table(before, delta) {
  if (!before) return delta;
  const { rows, gone, ...rest } = delta;
  const after = { ...before, ...rest };
  if (rows || gone) {
    after.rows = { ...before.rows };
    for (const [key, change] of Object.entries(rows ?? {})) {
      if (Array.isArray(change)) after.rows[key] = change;
      else {
        const cells = (after.rows[key] = [...before.rows[key]]);
        for (const [column, cell] of Object.entries(change)) cells[column] = cell;
      }
    }
    for (const key of gone ?? []) delete after.rows[key];
  }
  if (delta.links || gone) {
    after.links = { ...before.links, ...delta.links };
    for (const key of Object.keys(after.links)) if (!after.links[key] || !after.rows[key]) delete after.links[key];
  }
  return after;
}

function chart(before, delta) {
  if (!before || delta.values) return delta;
  const { append, late, ...rest } = delta;
  const after = { ...before, ...rest };
  if (append) {
    after.values = before.values.map((line, index) => {
      const more = append[index] ?? [];
      return [...line.slice(more.length), ...more];
    });
  }
  if (late) {
    after.values = after.values.map((line, index) => {
      if (!late[index]) return line;
      const mended = [...line];
      for (const [at, value] of Object.entries(late[index])) mended[at] = value;
      return mended;
    });
  }
  return after;
}
