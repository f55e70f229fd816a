/** The chat: sends, streams, stops, edits, regenerates. */

import { streamChat } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { count } from "./format.js";
import { MessageView } from "./message_view.js";
import { Parameters } from "./parameters.js";

export class ChatView {
  #conversation = new Conversation();
  #parameters = new Parameters(byId("parameters"), () => this.#toggleParameters());
  #views = [];
  #running = null;
  #discarded = null;

  /**
   * @param {import("./connection.js").Connection} connection
   * @param {{showRequest: Function}} actions
   */
  constructor(connection, { showRequest }) {
    this.#connection = connection;
    this.#actions = {
      edit: (message, text) => this.#edit(message, text),
      regenerate: (message) => this.#regenerate(message),
      showRequest,
    };
    connection.addEventListener("change", () => this.#showState());
    this.#listen();
    this.#showAll();
  }

  #connection;
  #actions;

  focus() {
    if (matchMedia("(hover: hover)").matches) byId("prompt").focus();
  }

  stop() {
    this.#running?.abort();
  }

  startNew() {
    this.stop();
    this.#discarded = this.#conversation.messages;
    this.#conversation.replaceAll([]);
    this.#showAll();
    this.focus();
  }

  #undoNew() {
    this.#conversation.replaceAll(this.#discarded);
    this.#discarded = null;
    this.#showAll();
  }

  #listen() {
    const prompt = byId("prompt");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.stop();
      else this.#send(prompt.value);
    });
    prompt.addEventListener("input", fit);
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.#running) this.#send(prompt.value);
      } else if (event.key === "ArrowUp" && !prompt.value) {
        event.preventDefault();
        this.#views.findLast((view) => view.message.role === "user")?.edit();
      }
    });
    addEventListener("pagehide", () => this.#conversation.save());
    byId("new-chat").addEventListener("click", () => this.startNew());
    byId("undo-new").addEventListener("click", () => this.#undoNew());
    byId("toggle-parameters").addEventListener("click", () => this.#toggleParameters());
  }

  #toggleParameters() {
    const isOpen = byId("chat").classList.toggle("with-parameters");
    byId("toggle-parameters").setAttribute("aria-expanded", isOpen);
  }

  #send(text) {
    if (!text.trim()) return;
    byId("prompt").value = "";
    fit.call(byId("prompt"));
    this.#discarded = null;
    this.#append({ role: "user", text });
    this.#answer();
  }

  async #edit(message, text) {
    if (!text.trim()) return;
    await this.#finished();
    this.#cutAt(message);
    this.#send(text);
  }

  async #regenerate(message) {
    await this.#finished();
    this.#cutAt(message);
    this.#answer();
  }

  /** An answer that still runs is stopped before the conversation changes under it. */
  async #finished() {
    this.stop();
    await this.#running?.done;
  }

  #cutAt(message) {
    this.#conversation.cutAt(message);
    while (this.#views.length > this.#conversation.messages.length) this.#views.pop().element.remove();
  }

  #append(message) {
    this.#conversation.add(message);
    const view = new MessageView(message, this.#actions);
    this.#views.push(view);
    byId("messages").append(view.element);
    this.#showState();
    scrollDown();
    return view;
  }

  #answer() {
    const stopper = new AbortController();
    const body = {
      model: "astrai",
      messages: this.#conversation.toWire(this.#parameters.system),
      ...this.#parameters.toWire(),
      stream: true,
      stream_options: { include_usage: true },
    };
    const view = this.#append({ role: "assistant", text: "", reasoning: "" });
    const conversation = this.#conversation.messages;
    this.#running = stopper;
    this.#showState();
    stopper.done = this.#stream(view, body, stopper.signal).finally(() => {
      this.#running = null;
      const follows = isAtEnd();
      view.update();
      if (follows) scrollDown();
      if (conversation === this.#conversation.messages) this.#conversation.save();
      this.#showState();
    });
  }

  async #stream(view, body, signal) {
    const { message } = view;
    const requestId = `page-${Date.now().toString(36)}-${Math.floor(Math.random() * 1e9).toString(36)}`;
    const stats = (message.stats = { tokens: 0, seconds: 0, first: NaN, cached: 0, reason: "", isCounted: false, requestId });
    const start = performance.now();
    const draw = drawer(view);
    view.update(true);
    try {
      for await (const chunk of streamChat(body, { signal, requestId })) {
        note(message, stats, chunk, start);
        draw.request();
      }
    } catch (error) {
      if (error.name === "AbortError") stats.reason = "stopped";
      else {
        message.error = error.message;
        this.#connection.report(error);
      }
    } finally {
      draw.cancel();
    }
  }

  #showAll() {
    this.#views = this.#conversation.messages.map((message) => new MessageView(message, this.#actions));
    byId("messages").replaceChildren(...this.#views.map((view) => view.element));
    this.#showState();
    scrollDown();
  }

  #showState() {
    const { model } = this.#connection;
    const send = byId("send");
    send.textContent = this.#running ? "Stop" : "Send";
    send.classList.toggle("stop", Boolean(this.#running));
    byId("welcome").hidden = this.#conversation.messages.length > 0;
    byId("welcome-model").textContent = model?.id ?? "";
    byId("undo-new").hidden = !this.#discarded?.length || this.#conversation.messages.length > 0;
    byId("context-note").textContent = contextNote(this.#conversation.messages, model);
  }
}

/** Takes a chunk of the stream into the message and its figures. */
function note(message, stats, chunk, start) {
  const choice = chunk.choices?.[0];
  const { content, reasoning_content: thought } = choice?.delta ?? {};
  if (content || thought) {
    message.text += content ?? "";
    message.reasoning += thought ?? "";
    stats.tokens += 1;
    const elapsed = (performance.now() - start) / 1000;
    if (stats.tokens === 1) stats.first = elapsed;
    stats.seconds = elapsed - stats.first;
  }
  if (choice?.finish_reason) stats.reason = choice.finish_reason;
  if (chunk.usage) {
    stats.tokens = chunk.usage.completion_tokens;
    stats.prompt = chunk.usage.prompt_tokens;
    stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    stats.isCounted = true;
  }
}

/** Draws a message at most once a frame, and keeps the end in sight of whoever is there. */
function drawer(view) {
  let waiting = 0;
  return {
    request() {
      waiting ||= requestAnimationFrame(() => {
        waiting = 0;
        const follows = isAtEnd();
        view.update(true);
        if (follows) scrollDown();
      });
    },
    cancel: () => cancelAnimationFrame(waiting),
  };
}

function contextNote(messages, model) {
  const last = messages.findLast((message) => message.stats?.prompt)?.stats;
  if (!last || !model) return "";
  return `${count(last.prompt + last.tokens)} of ${count(model.max_model_len)} tokens`;
}

const isAtEnd = () => byId("thread").scrollHeight - byId("thread").scrollTop - byId("thread").clientHeight < 60;

function scrollDown() {
  byId("thread").scrollTop = byId("thread").scrollHeight;
}

/** As tall as its text, up to a limit that CSS sets. */
function fit() {
  this.style.height = "auto";
  this.style.height = `${this.scrollHeight + 2}px`;
}
