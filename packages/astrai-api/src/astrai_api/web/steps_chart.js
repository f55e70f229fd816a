/** Every step as a column: rows that decode, tokens of prompts, and the time it took. */

import { Picture, ceiling, colour, hairline, label, requestColour } from "./canvas.js";
import { h } from "./dom.js";
import { count, duration, plural } from "./format.js";

const COLUMN = 6;
const GAP = 1;
const LEFT = 52;
const LANES = [
  { name: "decode", title: "rows that decode", share: 0.28, value: (step) => step.num_decoding + step.num_drafted, text: count },
  { name: "prefill", title: "prompt tokens", share: 0.4, value: promptTokens, text: count },
  { name: "soft", title: "time", share: 0.32, value: (step) => step.seconds, text: duration },
];

export class StepsChart {
  /** @param {import("./live_history.js").LiveHistory} history */
  constructor(history) {
    this.history = history;
    this.picture = new Picture("The last steps: rows that decode, prompt tokens, time", 248, (...to) => this.#draw(...to));
    this.note = h("p", { class: "note", "aria-live": "off" });
    this.element = h("div", {}, this.picture.canvas, this.note);
    this.pointed = null;
    this.picture.canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.picture.canvas.addEventListener("pointerleave", () => this.#point(null));
    this.update();
  }

  update() {
    this.picture.redraw();
    this.#describe();
  }

  #visible(width) {
    return this.history.steps.slice(-Math.floor((width - LEFT) / COLUMN));
  }

  #point(x) {
    const width = this.picture.canvas.clientWidth;
    const steps = this.#visible(width);
    const index = x === null ? -1 : steps.length - 1 - Math.floor((width - x) / COLUMN);
    this.pointed = steps[index] ?? null;
    this.update();
  }

  #describe() {
    const step = this.pointed ?? this.history.steps.at(-1);
    this.note.textContent = step ? `${this.pointed ? "This step" : "Last step"}: ${describe(step)}` : "No step since you began to watch.";
  }

  #draw(context, width, height) {
    const steps = this.#visible(width);
    let top = 0;
    for (const lane of LANES) {
      const laneHeight = height * lane.share;
      drawLane(context, lane, steps, { width, top: top + 16, bottom: top + laneHeight - 4 }, this.pointed);
      top += laneHeight;
    }
  }
}

function drawLane(context, lane, steps, { width, top, bottom }, pointed) {
  const highest = ceiling(Math.max(...steps.map(lane.value), lane.name === "soft" ? 0.001 : 1));
  hairline(context, LEFT, bottom, width, bottom);
  label(context, lane.title, LEFT, top - 5);
  label(context, lane.text(highest), LEFT - 8, top + 4, { align: "right", baseline: "middle" });
  label(context, "0", LEFT - 8, bottom, { align: "right", baseline: "middle" });
  const scale = (bottom - top) / highest;
  steps.forEach((step, i) => {
    const x = width - (steps.length - i) * COLUMN;
    context.globalAlpha = pointed && pointed !== step ? 0.4 : 1;
    let y = bottom;
    for (const [value, fill] of parts(lane, step)) {
      const tall = value && Math.max(value * scale, 1);
      context.fillStyle = fill;
      context.fillRect(x, y - tall, COLUMN - GAP, tall);
      y -= tall;
    }
  });
  context.globalAlpha = 1;
}

/** What a column is stacked from, bottom up. */
function parts(lane, step) {
  if (lane.name === "decode") return [[step.num_decoding, colour("decode")], [step.num_drafted, colour("draft")]];
  if (lane.name === "prefill") return step.chunks.map((chunk) => [chunk.num_tokens, requestColour(chunk.task_id)]);
  return [[step.seconds, colour("soft")]];
}

function promptTokens(step) {
  return step.chunks.reduce((sum, chunk) => sum + chunk.num_tokens, 0);
}

function describe(step) {
  const chunks = step.chunks.map((chunk) => `${count(chunk.num_tokens)} of ${shortId(chunk.task_id)}`);
  const parts = [
    step.num_decoding && `${plural(step.num_decoding, "row")} decoding`,
    step.num_drafted && `${plural(step.num_drafted, "token")} guessed`,
    chunks.length && `prompt tokens ${chunks.join(", ")}`,
    duration(step.seconds),
  ];
  return parts.filter(Boolean).join(" · ");
}

/** A request's number, with its choice if it is not the first: req-12.0 is #12. */
export const shortId = (id) => id.replace(/^req-/, "#").replace(/\.0$/, "");
