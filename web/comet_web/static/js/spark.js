// Sparklines as SVG paths; the same as comet_web/components/sparkline.py, which draws them before any script runs.

const WIDTH = 120;
const HEIGHT = 24;

export function sparkPath(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length || values.length < 2) return "";
  let [low, high] = [Math.min(0, ...known), Math.max(...known)];
  if (high <= low) high = low + 1;
  const step = WIDTH / (values.length - 1);
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    const y = HEIGHT - 1 - ((value - low) / (high - low)) * (HEIGHT - 2);
    path += `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return path;
}
