/** The conversation as data, kept in this browser. */

const KEY = "astrai.conversation";

/**
 * @typedef {Object} Message
 * @property {"user"|"assistant"} role
 * @property {string} text
 * @property {string} [reasoning] what the model thought first
 * @property {string} [error] why an answer is incomplete
 * @property {Object} [stats] of an answer: tokens, seconds, first (seconds), cached, prompt, reason, requestId
 */

export class Conversation {
  /** @type {Message[]} */
  messages = load();

  add(message) {
    this.messages.push(message);
    this.save();
    return message;
  }

  /** Drops a message and all after it. */
  cutAt(message) {
    this.messages.length = this.messages.indexOf(message);
    this.save();
  }

  replaceAll(messages) {
    this.messages = messages;
    this.save();
  }

  /** As the API takes them: reasoning of earlier turns is no part of a prompt. */
  toWire(system) {
    const turns = this.messages.filter((m) => m.text || m.role === "user").map((m) => ({ role: m.role, content: m.text }));
    return system ? [{ role: "system", content: system }, ...turns] : turns;
  }

  save() {
    try {
      localStorage.setItem(KEY, JSON.stringify(this.messages));
    } catch {
      // Full or forbidden storage: the conversation lasts as long as the page.
    }
  }
}

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(stored) ? stored.filter((m) => typeof m?.text === "string" && typeof m?.role === "string") : [];
  } catch {
    return [];
  }
}
