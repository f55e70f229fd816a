/** The page pool as a map: one square a page, coloured by what it holds and how many use it. */

import { Picture, colour, requestColour } from "./canvas.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";

const STATES = [
  { name: "free", title: "free", holds: (state) => state === 0 },
  { name: "cached", title: "cached", holds: (state) => state === 1 },
  { name: "in-use", title: "in use", holds: (state) => state === 2 },
  { name: "shared", title: "shared", holds: (state) => state > 2 },
];
const MAX_SQUARE = 15;
const AREA = 230;

export class PageMap {
  /** @param {import("./live_history.js").LiveHistory} history */
  constructor(history) {
    this.history = history;
    this.selected = null;
    this.pages = new Uint8Array();
    this.picture = new Picture("Map of the page pool", AREA, (...to) => this.#draw(...to));
    this.legend = h("ul", { class: "legend" });
    this.note = h("p", { class: "note" });
    this.element = h("div", {}, this.picture.canvas, this.legend, this.note);
    this.picture.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.picture.canvas.addEventListener("pointerleave", () => this.#describe(null));
  }

  /** @param {string|null} selected the request whose pages stand out */
  update(selected) {
    this.selected = selected;
    const { frame } = this.history;
    if (!frame) return;
    const states = frame.page_states;
    this.pages = new Uint8Array(states.reduce((sum, [, number]) => sum + number, 0));
    let at = 0;
    for (const [state, number] of states) this.pages.fill(state, at, (at += number));
    this.picture.redraw();
    this.#showLegend();
    if (!this.isPointed) this.#describe(null);
  }

  #showLegend() {
    const stride = this.history.frame.page_stride;
    const numbers = STATES.map(({ holds }) => this.pages.reduce((sum, state) => sum + holds(state), 0));
    this.legend.replaceChildren(
      ...STATES.map(({ name, title }, i) =>
        h("li", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), `${title} `, h("b", {}, count(numbers[i] * stride))),
      ),
    );
  }

  #grid(width) {
    const number = Math.max(this.pages.length, 1);
    let size = Math.min(MAX_SQUARE, Math.floor(Math.sqrt((width * AREA) / number)));
    while (size > 1 && Math.ceil(number / Math.floor(width / size)) * size > AREA) size -= 1;
    size = Math.max(size, 1);
    return { size, columns: Math.max(1, Math.floor(width / size)) };
  }

  #draw(context, width) {
    const { size, columns } = this.#grid(width);
    const gap = size > 5 ? 1.5 : size > 2 ? 0.5 : 0;
    const colours = STATES.map(({ name }) => colour(name));
    const own = this.#ownPages();
    this.picture.height = Math.max(40, Math.ceil(this.pages.length / columns) * size);
    this.pages.forEach((state, page) => {
      const x = (page % columns) * size;
      const y = Math.floor(page / columns) * size;
      const isOwn = own?.has(page);
      context.globalAlpha = own && !isOwn ? 0.28 : 1;
      context.fillStyle = isOwn ? requestColour(this.selected) : colours[Math.min(state, 3)];
      context.fillRect(x, y, size - gap, size - gap);
      if (isOwn && state > 2 && size > 4) markShared(context, x, y, size - gap);
    });
    context.globalAlpha = 1;
  }

  /** Squares of the selected request; null when it has none or there is no such request. */
  #ownPages() {
    const runs = this.history.lives.get(this.selected)?.now.page_runs;
    if (!runs?.length) return null;
    const stride = this.history.frame.page_stride;
    const own = new Set();
    for (const [first, number] of runs) {
      for (let page = first; page < first + number; page += 1) own.add(Math.floor(page / stride));
    }
    return own;
  }

  #point({ offsetX, offsetY }) {
    const { size, columns } = this.#grid(this.picture.canvas.clientWidth);
    const column = Math.floor(offsetX / size);
    const page = column < columns ? Math.floor(offsetY / size) * columns + column : -1;
    this.#describe(page >= 0 && page < this.pages.length ? page : null);
  }

  #describe(page) {
    this.isPointed = page !== null;
    const { frame, engine } = this.history;
    if (!frame) return;
    if (page === null) {
      const every = frame.page_stride > 1 ? `, of which every ${frame.page_stride}th is shown` : "";
      this.note.textContent = `${plural(frame.num_pages, "page")} of ${plural(engine.page_size, "token")}${every}`;
      return;
    }
    const state = this.pages[page];
    const users = [...this.history.lives.values()].filter((life) => life.now.page_runs?.some(([first, number]) => page >= first && page < first + number));
    const names = users.map((life) => life.id.replace(/^req-/, "#").replace(/\.0$/, "")).join(", ");
    const words = state === 0 ? "free" : state === 1 ? "cached: a prefix that can be used again" : state === 2 ? "in use" : `shared by ${state - 1}`;
    this.note.textContent = `Page ${count(page * frame.page_stride)}: ${words}${names ? ` (${names})` : ""}`;
  }
}

/** A notch in the corner: others read this page too. */
function markShared(context, x, y, size) {
  context.fillStyle = colour("shared");
  context.fillRect(x, y, size, Math.max(2, size / 3));
}
