/** Numbers as people read them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

export const percent = (part, all) => (all ? `${whole.format((100 * part) / all)} %` : "–");

export const rate = (value) => (value >= 100 ? whole.format(value) : value.toFixed(1));

/** Seconds in the unit that fits: 840 µs, 12 ms, 1.4 s, 2 min. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 5e-7) return "0";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function median(values) {
  if (!values.length) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)];
}
