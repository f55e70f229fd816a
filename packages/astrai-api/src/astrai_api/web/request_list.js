/** The requests that run, wait, and ended last: a row each, to be chosen. */

import { requestColour } from "./canvas.js";
import { h } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { shortId } from "./steps_chart.js";

const MAX_ENDED_SHOWN = 8;
const REASONS = { stop: "done", length: "cut at its limit", tool_calls: "called tools", aborted: "stopped", error: "failed" };

export class RequestList {
  #rows = new Map();

  /**
   * @param {import("./live_history.js").LiveHistory} history
   * @param {(id: string) => void} select
   */
  constructor(history, select) {
    this.history = history;
    this.select = select;
    this.list = h("ul", { class: "requests" });
    this.note = h("p", { class: "note" });
    this.element = h("div", {}, this.list, this.note);
  }

  update(selected) {
    const lives = [...this.history.lives.values()];
    const present = lives.filter((life) => life.endedAt === null);
    const ended = lives.filter((life) => life.endedAt !== null);
    const isKept = (life, i) => i < MAX_ENDED_SHOWN || life.id === selected;
    const shown = [
      ...present.filter((life) => life.now.is_running),
      ...present.filter((life) => !life.now.is_running),
      ...ended.reverse().filter(isKept),
    ];
    const rows = shown.map((life) => this.#row(life, selected));
    for (const id of this.#rows.keys()) if (!shown.some((life) => life.id === id)) this.#rows.delete(id);
    rows.forEach((row, i) => this.list.children[i] !== row && this.list.insertBefore(row, this.list.children[i] ?? null));
    while (this.list.children.length > rows.length) this.list.lastChild.remove();
    const { frame } = this.history;
    const numMore = frame ? frame.num_running + frame.num_waiting - frame.requests.length : 0;
    this.note.textContent = !shown.length ? "Nothing has run since you began to watch. Ask something in the chat." : numMore > 0 ? `and ${plural(numMore, "more request")}` : "";
  }

  #row(life, selected) {
    let row = this.#rows.get(life.id);
    if (!row) {
      row = newRow(life, () => this.select(life.id));
      this.#rows.set(life.id, row);
    }
    fillRow(row, life, life.id === selected);
    return row;
  }
}

function newRow(life, onclick) {
  const parts = { id: h("span", { class: "request-id" }, shortId(life.id)), state: h("span", { class: "request-state" }), tokens: h("span", { class: "request-tokens" }) };
  const prompt = h("span", { class: "prompt-bar" }, h("i", { class: "cached" }), h("i", { class: "computed" }));
  const output = h("span", { class: "output-bar" }, h("i", { class: "generated" }));
  const dot = h("span", { class: "request-dot", "aria-hidden": "true" });
  const button = h("button", { type: "button", onclick }, dot, parts.id, parts.state, h("span", { class: "progress", "aria-hidden": "true" }, prompt, output), parts.tokens);
  const row = h("li", {}, button);
  dot.style.background = requestColour(life.id);
  return Object.assign(row, { parts, prompt, output, button });
}

function fillRow(row, life, isSelected) {
  const { now } = life;
  row.button.setAttribute("aria-pressed", isSelected);
  row.classList.toggle("ended", life.endedAt !== null);
  row.parts.state.textContent = stateOf(life);
  row.parts.tokens.textContent = `${count(now.num_prompt_tokens)} + ${count(now.num_generated)}`;
  row.button.title = `${plural(now.num_prompt_tokens, "prompt token")}, ${count(now.num_cached)} reused; ${plural(now.num_generated, "token")} generated${now.max_tokens ? ` of ${count(now.max_tokens)} at most` : ""}`;
  const computed = life.endedAt === null ? Math.min(now.num_computed, now.num_prompt_tokens) : now.num_prompt_tokens;
  const width = (part, all) => `${all ? Math.min(100, (100 * part) / all) : 0}%`;
  const [cached, rest] = row.prompt.children;
  cached.style.width = width(now.num_cached, now.num_prompt_tokens);
  rest.style.width = width(Math.max(computed - now.num_cached, 0), now.num_prompt_tokens);
  row.output.firstChild.style.width = width(now.num_generated, now.max_tokens);
}

function stateOf(life) {
  if (life.endedAt !== null) return `${REASONS[life.reason] ?? life.reason}, ${duration(life.endedAt - life.now.submitted_at)}`;
  if (!life.now.is_running) return life.preemptedAt.length ? "gave its pages back" : "waiting";
  return life.now.num_generated ? "decoding" : "reading its prompt";
}
