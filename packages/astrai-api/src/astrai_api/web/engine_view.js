/** The engine, live: figures, steps, requests, pages, and what they were over two minutes. */

import { h } from "./dom.js";
import { count, duration, median, percent, rate } from "./format.js";
import { LiveFeed } from "./live_feed.js";
import { LiveHistory, tokenGaps } from "./live_history.js";
import { PageMap } from "./page_map.js";
import { RequestList } from "./request_list.js";
import { RequestTimeline } from "./request_timeline.js";
import { latencyChart, throughputChart } from "./series_chart.js";
import { StepsChart } from "./steps_chart.js";

const RECENT_SECONDS = 10;

export class EngineView {
  #history = new LiveHistory();
  #selected = null;
  #wanted = null;
  #failure = null;
  #isShown = false;
  #timer = 0;

  constructor(element, connection) {
    this.connection = connection;
    this.feed = new LiveFeed({
      engine: (engine) => this.#meet(engine),
      frame: (frame) => this.#take(frame),
      state: (state, failure) => this.#showState(state, failure),
    });
    const history = this.#history;
    this.steps = new StepsChart(history);
    this.pages = new PageMap(history);
    this.list = new RequestList(history, (id) => this.select(id === this.#selected ? null : id));
    this.timeline = new RequestTimeline(history, () => this.select(null));
    this.series = [throughputChart(history), latencyChart(history)];
    this.figures = figures();
    this.about = h("p", { class: "about muted" });
    this.notice = h("p", { class: "feed-notice", role: "status", hidden: true });
    element.append(this.#layout());
    document.addEventListener("visibilitychange", () => this.#follow());
    connection.addEventListener("change", () => connection.state === "ready" && this.#reopen());
  }

  /** The feed is open only while somebody can see it. */
  setShown(isShown) {
    this.#isShown = isShown;
    this.#follow();
  }

  select(id) {
    this.#selected = id;
    this.#wanted = null;
    this.#showNotice();
    this.#update();
    if (id) this.timeline.element.scrollIntoView({ block: "nearest" });
  }

  /** Chooses a request by the caller's own id, now or as soon as it comes. */
  selectByRequestId(requestId) {
    const life = this.#history.byRequestId(requestId);
    this.select(life?.id ?? null);
    if (life) return;
    this.#wanted = requestId;
    this.#showNotice();
  }

  #layout() {
    const legend = h("ul", { class: "legend" }, ...[["decode", "decode"], ["draft", "guesses"]].map(([name, title]) => h("li", {}, h("span", { class: `swatch ${name}` }), title)), h("li", { class: "muted" }, "prompts in the colour of their request"));
    return h(
      "div", { class: "engine" },
      this.notice,
      this.figures.element,
      card("Steps", "steps", this.steps.element, legend),
      card("Requests", "list", this.list.element),
      this.timeline.element,
      card("Page pool", "pages", this.pages.element),
      card("Tokens a second", "rates", this.series[0].canvas),
      card("Latency", "latency", this.series[1].canvas, h("ul", { class: "legend" }, h("li", {}, h("span", { class: "swatch prefill round" }), "to the first token"), h("li", {}, h("span", { class: "swatch decode" }), "between tokens"))),
      this.about,
    );
  }

  #follow() {
    const isSeen = this.#isShown && !document.hidden;
    clearInterval(this.#timer);
    if (!isSeen) return this.feed.close();
    this.feed.open();
    this.#timer = setInterval(() => this.#tick(), 1000);
  }

  /** The server is back: do not wait for the next try. */
  #reopen() {
    if (!this.feed.isOpen || !this.#failure) return;
    this.feed.close();
    this.feed.open();
  }

  #meet(engine) {
    this.#history.restart(engine);
    this.about.textContent = `${engine.model} · ${engine.device}, ${engine.dtype}, ${engine.backend} · context of ${count(engine.max_seq_len)} tokens · pool of ${count(engine.n_tokens)} tokens`;
  }

  #take(frame) {
    this.#history.add(frame);
    const wanted = this.#wanted && this.#history.byRequestId(this.#wanted);
    if (wanted) this.select(wanted.id);
    else this.#update();
  }

  /** Between frames only time goes on. */
  #tick() {
    for (const chart of this.series) chart.redraw();
    this.#showFigures();
  }

  #update() {
    this.steps.update();
    this.pages.update(this.#selected);
    this.list.update(this.#selected);
    this.timeline.update(this.#selected);
    this.#tick();
  }

  #showFigures() {
    const { frame, engine, steps, firstTokens, now } = this.#history;
    if (!frame) return;
    const recent = steps.filter((step) => step.ended_at > now - RECENT_SECONDS);
    const span = Math.min(RECENT_SECONDS, Math.max(now - (steps[0]?.ended_at ?? now), 1));
    const { prompt_tokens: prompt, cached_tokens: cached } = frame.totals;
    const used = frame.page_states.reduce((sum, [state, number]) => sum + (state > 1 ? number : 0), 0) * frame.page_stride;
    this.figures.set({
      running: [count(frame.num_running), `of ${count(engine.max_batch_size)}`],
      waiting: [count(frame.num_waiting), frame.totals.preemptions ? `${count(frame.totals.preemptions)} preempted` : ""],
      tokens: [rate(recent.reduce((sum, step) => sum + step.num_generated, 0) / span), "last 10 s"],
      first: [duration(median(firstTokens.slice(-16).map(({ seconds }) => seconds))), "median"],
      gap: [duration(median(tokenGaps(recent).map(({ seconds }) => seconds))), "median, 10 s"],
      hits: [percent(cached, prompt), "of prompt tokens"],
      pages: [percent(used, frame.num_pages), "in use"],
    });
  }

  #showState(state, failure) {
    if (state === "live") this.#failure = null;
    if (failure) {
      this.#failure = failure;
      this.connection.report(failure);
    }
    this.#showNotice();
  }

  #showNotice() {
    const lost = this.#failure && `${this.#failure.message} What you see is from before; trying again.`;
    const missing = this.#wanted && "That request is not here: it ended before you began to watch.";
    this.notice.textContent = lost || missing || "";
    this.notice.hidden = !(lost || missing);
  }
}

function card(title, name, ...children) {
  return h("section", { class: `card ${name}`, "aria-label": title }, h("div", { class: "card-head" }, h("h2", {}, title), ...children.slice(1)), children[0]);
}

const FIGURES = { running: "Running", waiting: "Waiting", tokens: "Tokens a second", first: "First token", gap: "Between tokens", hits: "Prefix hits", pages: "Pages" };

function figures() {
  const cells = {};
  const element = h("dl", { class: "figures" });
  for (const [name, title] of Object.entries(FIGURES)) {
    cells[name] = [h("span", { class: "figure" }, "–"), h("span", { class: "note" })];
    element.append(h("div", { class: name }, h("dt", {}, title), h("dd", {}, ...cells[name])));
  }
  return {
    element,
    set(values) {
      for (const [name, texts] of Object.entries(values)) texts.forEach((text, i) => (cells[name][i].textContent = text));
    },
  };
}
