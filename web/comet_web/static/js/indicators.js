// Indicators over candles. Each is computed from the known candles up to one, and has no value before it has enough of
// them: `need` candles. Candles without a quote are skipped.
//
//   of(lines, known, before)   lines: open, high, low, close, volume; known: the indexes of the candles so far, the last
//                              one being computed; before: the values of the candle before that. One value for each name

const N = 20;
const VWAP_N = 60;
const DEVIATIONS = 2;

export const INDICATORS = [
  {
    key: "vwap",
    names: [`VWAP ${VWAP_N}`],
    title: `volume-weighted average price of the last ${VWAP_N} candles`,
    need: VWAP_N,
    of: ([, high, low, close, volume], known) => {
      let [paid, traded] = [0, 0];
      for (const at of known.slice(-VWAP_N)) {
        paid += ((high[at] + low[at] + close[at]) / 3) * volume[at];
        traded += volume[at];
      }
      return [traded > 0 ? paid / traded : null];
    },
  },
  { key: "sma", names: [`SMA ${N}`], title: `mean of the last ${N} closes`, need: N, of: ({ 3: close }, known) => [mean(close, known)] },
  {
    key: "ema",
    names: [`EMA ${N}`],
    title: `exponential moving average of closes; it begins with the mean of the first ${N}`,
    need: N,
    of: ({ 3: close }, known, [before]) => {
      const last = close[known.at(-1)];
      return [before === null ? mean(close, known) : before + (2 / (N + 1)) * (last - before)];
    },
  },
  {
    key: "bollinger",
    names: ["Bollinger upper", "Bollinger lower"],
    title: `mean of the last ${N} closes, plus and minus ${DEVIATIONS} standard deviations`,
    need: N,
    of: ({ 3: close }, known) => {
      const middle = mean(close, known);
      let squares = 0;
      for (const at of known.slice(-N)) squares += (close[at] - middle) ** 2;
      const away = DEVIATIONS * Math.sqrt(squares / N);
      return [middle + away, middle - away];
    },
  },
  {
    key: "volatility",
    names: [`Volatility ${N}`],
    title: `realised volatility of the last ${N} returns, not annualised`,
    need: N + 1,
    apart: true, // in a chart of its own, in %
    of: ({ 3: close }, known) => {
      const closes = known.slice(-N - 1).map((at) => close[at]);
      let squares = 0;
      for (let at = 1; at <= N; at += 1) squares += Math.log(closes[at] / closes[at - 1]) ** 2;
      return [Number.isFinite(squares) ? 100 * Math.sqrt(squares) : null];
    },
  },
];

function mean(close, known) {
  let sum = 0;
  for (const at of known.slice(-N)) sum += close[at];
  return sum / N;
}

const MOST = Math.max(...INDICATORS.map(({ need }) => need));

// The values of one indicator, beside its candles.
export class IndicatorLines {
  constructor(indicator) {
    this.indicator = indicator;
    this.lines = indicator.names.map(() => []);
    this.computed = 0; // values, in all
  }

  // Computes the values from one index on. Those before it stay.
  compute(candles, from) {
    const close = candles[3];
    const known = [];
    for (let at = from - 1; at >= 0 && known.length < MOST; at -= 1) if (close[at] !== null) known.unshift(at);
    const { need, of } = this.indicator;
    for (const line of this.lines) line.length = from;
    for (let at = from; at < close.length; at += 1) {
      const last = known.at(-1);
      let values = null;
      if (close[at] !== null) {
        known.push(at);
        if (known.length > MOST) known.shift();
        if (known.length >= need) {
          values = of(candles, known, this.lines.map((line) => (last === undefined ? null : line[last])));
          this.computed += 1;
        }
      }
      this.lines.forEach((line, which) => line.push(values === null ? null : values[which]));
    }
  }
}
