/** One message on the page. */

import { copyButton, h } from "./dom.js";
import { duration, plural, rate } from "./format.js";
import { renderMarkdown } from "./markdown.js";

export class MessageView {
  /**
   * @param {import("./conversation.js").Message} message
   * @param {{edit: Function, regenerate: Function, showRequest: Function}} actions
   */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.text = h("div", { class: "prose" });
    this.thought = h("div", { class: "prose" });
    this.summary = h("summary");
    this.reasoning = h("details", { class: "reasoning", hidden: true }, this.summary, this.thought);
    this.foot = h("div", { class: "foot" });
    this.stats = h("span", { class: "stats" });
    const isAnswer = message.role === "assistant";
    this.element = h("li", { class: `message ${message.role}` }, h("h2", { class: "offscreen" }, isAnswer ? "Answer" : "You"), isAnswer && this.reasoning, this.text, this.foot);
    this.update();
  }

  /** Shows the message as it is now. @param {boolean} [isWriting] more of it is to come. */
  update(isWriting = false) {
    const { role, text, reasoning } = this.message;
    this.element.classList.toggle("writing", isWriting);
    this.element.setAttribute("aria-busy", isWriting);
    if (role === "user") this.text.textContent = text;
    else renderMarkdown(this.text, text);
    this.reasoning.hidden = !reasoning;
    if (reasoning) {
      this.summary.textContent = isWriting && !text ? "Thinking" : "Thought before answering";
      renderMarkdown(this.thought, reasoning);
    }
    this.#showFoot(isWriting);
  }

  /** What can be clicked stays where it is while the text above it grows. */
  #showFoot(isWriting) {
    const { role, stats } = this.message;
    const waiting = isWriting ? "Waiting for the first token" : "";
    this.stats.textContent = stats?.tokens ? summary(stats) : waiting;
    if (isWriting && this.isWriting) return;
    this.isWriting = isWriting;
    this.foot.replaceChildren(...(role === "user" ? this.#userFoot() : this.#answerFoot()));
  }

  /** Turns the message into a text field. */
  edit() {
    const field = h("textarea", { value: this.message.text, "aria-label": "Edit message", onkeydown: (event) => this.#editKey(event, field) });
    const save = h("button", { type: "button", class: "primary", onclick: () => this.actions.edit(this.message, field.value) }, "Send");
    const cancel = h("button", { type: "button", onclick: () => this.#leaveEdit() }, "Cancel");
    this.text.replaceChildren(h("div", { class: "edit" }, field, h("div", { class: "actions" }, cancel, save)));
    this.element.classList.add("editing");
    this.foot.replaceChildren();
    field.style.height = `${field.scrollHeight + 2}px`;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #editKey(event, field) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.actions.edit(this.message, field.value);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      this.#leaveEdit();
    }
  }

  #leaveEdit() {
    this.element.classList.remove("editing");
    this.update();
  }

  #userFoot() {
    return [h("button", { type: "button", class: "link", onclick: () => this.edit() }, "Edit")];
  }

  #answerFoot() {
    const { stats, error, text } = this.message;
    const { regenerate, showRequest } = this.actions;
    const link = (label, onclick) => h("button", { type: "button", class: "link", onclick }, label);
    const engine = stats?.requestId && link("In the engine", () => showRequest(stats.requestId));
    if (this.isWriting) return [this.stats, engine];
    const again = link(error ? "Try again" : "Regenerate", () => regenerate(this.message));
    const refusal = error && h("p", { class: "error", role: "alert" }, error);
    return [refusal, this.stats, text && copyButton(() => text), again, engine].filter(Boolean);
  }
}

function summary({ tokens, seconds, first, cached, reason, isCounted }) {
  const parts = [
    `${isCounted ? "" : "about "}${plural(tokens, "token")}`,
    tokens > 1 && seconds > 0.01 && `${rate((tokens - 1) / seconds)} a second`,
    `first after ${duration(first)}`,
    cached > 0 && `${plural(cached, "prompt token")} reused`,
    reason === "length" && "cut at the longest answer",
    reason === "stopped" && "stopped",
  ];
  return parts.filter(Boolean).join(" · ");
}
