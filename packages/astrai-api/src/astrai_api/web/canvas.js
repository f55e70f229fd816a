/** Canvases that are sharp on every screen and take their colours from the style sheet. */

import { h } from "./dom.js";

/**
 * A canvas with a size in CSS pixels that follows its container.
 * @param {(context: CanvasRenderingContext2D, width: number, height: number) => void} draw
 */
export class Picture {
  #draw;
  #isWaiting = false;

  constructor(label, height, draw) {
    this.#draw = draw;
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    document.documentElement.addEventListener("themechange", () => this.redraw());
  }

  set height(pixels) {
    this.canvas.style.height = `${pixels}px`;
  }

  /** Draws with the next frame of the screen. */
  redraw() {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    requestAnimationFrame(() => {
      this.#isWaiting = false;
      this.#paint();
    });
  }

  #paint() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    const scale = devicePixelRatio;
    const [w, h2] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h2) Object.assign(this.canvas, { width: w, height: h2 });
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    this.#draw(context, width, height);
  }
}

/** A colour of the style sheet, by its name there. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Text with its baseline and alignment. */
export function label(context, text, x, y, { align = "left", baseline = "alphabetic", name = "soft" } = {}) {
  context.fillStyle = colour(name);
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillText(text, x, y);
}

/** A thin line that is one pixel, not two halves. */
export function hairline(context, x1, y1, x2, y2, name = "line") {
  context.strokeStyle = colour(name);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  context.lineTo(Math.round(x2) + 0.5, Math.round(y2) + 0.5);
  context.stroke();
}

/** The next of 1, 2, 5, 10, 20 … that is not below a value. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((round) => round >= value * 0.999);
}

/** A calm colour of its own for each request, from its number. */
export function requestColour(id) {
  const number = Number(/\d+/.exec(id)?.[0] ?? 0);
  const dark = document.documentElement.dataset.theme === "dark";
  return `oklch(${dark ? 75 : 64}% 0.095 ${(number * 137.5 + 70) % 360})`;
}
