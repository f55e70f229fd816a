/** The life of one request as a drawing and in words: queue, prompt chunks, first token, decoding. */

import { h, s } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { shortId } from "./steps_chart.js";

const HEIGHT = 92;
const LANE = { top: 22, bottom: 62 };
const REASONS = { stop: "Ended by itself", length: "Cut at its limit", tool_calls: "Ended with a tool call", aborted: "Stopped", error: "Failed" };

export class RequestTimeline {
  /**
   * @param {import("./live_history.js").LiveHistory} history
   * @param {() => void} close
   */
  constructor(history, close) {
    this.history = history;
    this.title = h("h2");
    this.drawing = h("div", { class: "timeline-drawing" });
    this.words = h("ol", { class: "timeline-words" });
    this.element = h(
      "section", { class: "card timeline", hidden: true, tabIndex: -1 },
      h("div", { class: "card-head" }, this.title, h("button", { type: "button", class: "link", onclick: close }, "Close")),
      this.drawing, this.words,
    );
  }

  update(selected) {
    const life = this.history.lives.get(selected);
    this.element.hidden = !life;
    if (!life) return;
    this.title.replaceChildren(`Request ${shortId(life.id)}`, h("span", {}, life.now.request_id ?? ""));
    const now = life.endedAt ?? this.history.now;
    this.drawing.replaceChildren(draw(life, now, this.drawing.clientWidth || 600));
    this.words.replaceChildren(...words(life, now).map(([at, text]) => h("li", {}, h("span", { class: "at" }, at === null ? "" : duration(at - life.now.submitted_at)), h("span", {}, text))));
  }
}

/**
 * Two stretches side by side, each on a scale of its own: the way to the first token is often a
 * hundredth of the rest, and is what people wait for.
 */
function draw(life, now, width) {
  const start = life.now.submitted_at;
  const turn = life.firstTokenAt ?? (life.isWhole || life.chunks.length ? now : start);
  const hasRest = life.firstTokenAt !== null || !life.isWhole;
  const split = hasRest ? Math.round(width * 0.46) : width;
  const before = (at) => ((at - start) / Math.max(turn - start, 1e-4)) * (split - (hasRest ? 6 : 0));
  const after = (at) => split + 6 + ((at - turn) / Math.max(now - turn, 1e-4)) * (width - split - 6);
  const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width: "100%", height: HEIGHT, role: "img", "aria-label": "Timeline of the request" });
  const admitted = life.admittedAt ?? (life.isWhole ? turn : null);
  if (admitted !== null) svg.append(block("queued", before(start), before(admitted)));
  for (const chunk of life.chunks.filter(({ at }) => at < turn)) {
    svg.append(block("chunk", before(chunk.at), Math.max(before(chunk.at + chunk.seconds) - 1, before(chunk.at) + 1.5), `${plural(chunk.tokens, "prompt token")}, ${duration(chunk.seconds)}`));
  }
  svg.append(axis(0, before(turn), "0", duration(turn - start), life.firstTokenAt !== null ? "to the first token" : "so far"));
  if (hasRest) {
    svg.append(...decodeArea(life, turn, now, after, LANE));
    svg.append(axis(split + 6, width, "", duration(now - turn), life.endedAt === null ? "decoding" : "from the first token to the last"));
    svg.append(s("line", { class: "first-token", x1: split, x2: split, y1: LANE.top - 8, y2: LANE.bottom + 4 }));
  }
  for (const at of life.preemptedAt) {
    const x = at < turn ? before(at) : after(at);
    svg.append(s("line", { class: "preempted", x1: x, x2: x, y1: LANE.top - 8, y2: LANE.bottom + 4 }));
  }
  return svg;
}

function block(kind, from, to, title) {
  const rect = s("rect", { class: kind, x: from, y: LANE.top, width: Math.max(to - from, 0), height: LANE.bottom - LANE.top, rx: 1.5 });
  if (title) rect.append(s("title", {}, title));
  return rect;
}

function axis(from, to, first, last, title) {
  const text = (x, anchor, content) => s("text", { x, y: HEIGHT - 12, "text-anchor": anchor }, content);
  return s("g", { class: "axis" }, s("line", { x1: from, x2: to, y1: LANE.bottom + 4, y2: LANE.bottom + 4 }), text(from, "start", first), text(to, "end", last), s("text", { x: from, y: LANE.top - 9 }, title));
}

/** Tokens a second between frames, as steps of an area. */
function decodeArea(life, turn, now, x, { top, bottom }) {
  const points = [{ at: turn, tokens: 1 }, ...life.growth.filter(({ at, tokens }) => at > turn && tokens > 1)];
  const rates = points.slice(1).map((point, i) => ({ from: points[i].at, to: point.at, rate: (point.tokens - points[i].tokens) / Math.max(point.at - points[i].at, 1e-3) }));
  const highest = Math.max(...rates.map((part) => part.rate), 1);
  return rates.map(({ from, to, rate: value }) => {
    const tall = Math.max((value / highest) * (bottom - top), 1);
    const rect = s("rect", { class: "decoding", x: x(from), y: bottom - tall, width: Math.max(x(to) - x(from) - 0.5, 0.5), height: tall });
    rect.append(s("title", {}, `${rate(value)} tokens a second`));
    return rect;
  });
}

function words(life, now) {
  const { num_prompt_tokens: prompt, num_cached: cached, num_generated: generated, submitted_at: start } = life.now;
  const list = [[start, `Came with ${plural(prompt, "prompt token")}`]];
  if (!life.isWhole) list.push([null, "Was running when you began to watch: its beginning was not seen"]);
  if (life.admittedAt !== null && life.isWhole) list.push([life.admittedAt, `Began to run, ${cached ? `${count(cached)} of them reused from the prefix cache` : "none of them in the prefix cache"}`]);
  const computed = life.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
  if (life.chunks.length) list.push([life.chunks.at(-1).at + life.chunks.at(-1).seconds, `${count(computed)} computed in ${plural(life.chunks.length, "chunk")}`]);
  if (life.firstTokenAt !== null) list.push([life.firstTokenAt, "First token"]);
  for (const at of life.preemptedAt) list.push([at, "Gave its pages back to others, to be computed again"]);
  const seconds = now - (life.firstTokenAt ?? start);
  const speed = generated > 1 && life.firstTokenAt !== null ? `, ${rate((generated - 1) / Math.max(seconds, 1e-3))} a second` : "";
  if (life.endedAt !== null) list.push([life.endedAt, `${REASONS[life.reason] ?? life.reason} after ${plural(generated, "token")}${speed}`]);
  else if (generated) list.push([now, `${plural(generated, "token")} so far${speed}`]);
  else list.push([now, life.now.is_running ? "Reads its prompt" : "Waits"]);
  return list.sort(([a], [b]) => (a ?? start) - (b ?? start));
}
