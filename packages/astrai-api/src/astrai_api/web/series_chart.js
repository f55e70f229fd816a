/** Two minutes of tokens a second, and of latencies. */

import { Picture, ceiling, colour, hairline, label } from "./canvas.js";
import { count, median } from "./format.js";
import { WINDOW_SECONDS, tokenGaps, tokenRates } from "./live_history.js";

const LEFT = 52;
const TOP = 10;
const BOTTOM = 18;

/** A picture over the last two minutes; `plot` draws into the box that is left beside the axes. */
function overTime(title, height, plot) {
  return new Picture(title, height, (context, width, tall) => {
    const box = { left: LEFT, right: width, top: TOP, bottom: tall - BOTTOM };
    for (let ago = 0; ago <= WINDOW_SECONDS; ago += 30) {
      const x = box.right - (ago / WINDOW_SECONDS) * (box.right - box.left);
      const align = ago === 0 ? "right" : ago === WINDOW_SECONDS ? "left" : "center";
      label(context, ago ? `−${ago} s` : "now", x, tall - 4, { align });
    }
    plot(context, box);
  });
}

/** Tokens a second. @param {import("./live_history.js").LiveHistory} history */
export function throughputChart(history) {
  return overTime("Tokens a second over two minutes", 150, (context, box) => {
    const rates = tokenRates(history.steps, Math.floor(history.now));
    const highest = ceiling(Math.max(...rates, 1));
    const y = (value) => box.bottom - (value / highest) * (box.bottom - box.top);
    for (const value of [0, highest / 2, highest]) {
      hairline(context, box.left, y(value), box.right, y(value));
      label(context, count(value), box.left - 8, y(value), { align: "right", baseline: "middle" });
    }
    const width = (box.right - box.left) / rates.length;
    context.beginPath();
    rates.forEach((rate, i) => context.lineTo(box.left + (i + 0.5) * width, y(rate)));
    context.strokeStyle = colour("decode");
    context.lineWidth = 1.5;
    context.stroke();
    context.lineTo(box.right - width / 2, box.bottom);
    context.lineTo(box.left + width / 2, box.bottom);
    context.fillStyle = colour("decode");
    context.globalAlpha = 0.2;
    context.fill();
    context.globalAlpha = 1;
  });
}

const DECADES = [0.001, 0.01, 0.1, 1, 10, 100];

/** Time to first token as dots, time between tokens as a line; a logarithmic scale holds both. */
export function latencyChart(history) {
  return overTime("Latency over two minutes", 150, (context, box) => {
    const gaps = tokenGaps(history.steps);
    const all = [...gaps, ...history.firstTokens].map(({ seconds }) => seconds);
    const low = DECADES.findLast((decade) => decade <= Math.min(...all, 0.01)) ?? DECADES[0];
    const high = DECADES.find((decade) => decade >= Math.max(...all, 0.1)) ?? DECADES.at(-1);
    const y = (seconds) => box.bottom - ((Math.log10(seconds) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))) * (box.bottom - box.top);
    const x = (at) => box.right - ((history.now - at) / WINDOW_SECONDS) * (box.right - box.left);
    for (const decade of DECADES.filter((value) => value >= low && value <= high)) {
      hairline(context, box.left, y(decade), box.right, y(decade));
      label(context, decade < 1 ? `${decade * 1000} ms` : `${decade} s`, box.left - 8, y(decade), { align: "right", baseline: "middle" });
    }
    context.save();
    context.beginPath();
    context.rect(box.left, 0, box.right - box.left, box.bottom + 1);
    context.clip();
    drawGaps(context, bySecond(gaps), x, y);
    context.fillStyle = colour("prefill");
    for (const { at, seconds } of history.firstTokens) {
      context.beginPath();
      context.arc(x(at), y(Math.max(seconds, low)), 3, 0, 2 * Math.PI);
      context.fill();
    }
    context.restore();
  });
}

/** Medians of each second. */
function bySecond(points) {
  const seconds = new Map();
  for (const { at, seconds: value } of points) {
    const second = Math.floor(at);
    if (!seconds.has(second)) seconds.set(second, []);
    seconds.get(second).push(value);
  }
  return [...seconds].map(([second, values]) => ({ at: second + 0.5, seconds: median(values) }));
}

/** A line that is broken where nothing ran. */
function drawGaps(context, points, x, y) {
  context.strokeStyle = colour("decode");
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.lineCap = "round";
  context.beginPath();
  points.forEach(({ at, seconds }, i) => {
    const follows = i > 0 && at - points[i - 1].at < 1.5;
    if (!follows) context.moveTo(x(at) - 1, y(seconds));
    context.lineTo(x(at), y(seconds));
  });
  context.stroke();
}
