/** The parameters of a request, as a form that remembers. */

import { h } from "./dom.js";

const KEY = "astrai.parameters";

/** `usual` is where the slider stands as long as the server's default is used. */
const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, usual: 1, note: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, usual: 1, note: "likeliest tokens that add up to this" },
  { name: "top_k", label: "Top k", min: 0, max: 200, step: 1, usual: 50, note: "this many likeliest tokens; 0 is all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, usual: 0, note: "least probability, of the likeliest token's" },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 8192, step: 1, usual: 2048, note: "tokens" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.5, max: 2, step: 0.01, usual: 1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.05, usual: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.05, usual: 0 },
];

export class Parameters {
  #values;
  #rows = [];

  /** @param {() => void} close hides the form */
  constructor(element, close) {
    this.#values = load();
    this.#build(element, close);
  }

  get system() {
    return (this.#values.system ?? "").trim();
  }

  /** Fields of a chat request. */
  toWire() {
    const { system, seed, stop, thinks, ...numbers } = this.#values;
    return {
      ...numbers,
      ...(seed && { seed: Number(seed) }),
      ...(stop && { stop: stop.split("\n").filter(Boolean) }),
      ...(thinks === false && { chat_template_kwargs: { enable_thinking: false } }),
    };
  }

  #build(element, close) {
    const text = (name, properties) => this.#text(name, properties);
    const thinks = h("input", { type: "checkbox", checked: this.#values.thinks !== false, onchange: () => this.#set("thinks", thinks.checked ? undefined : false) });
    this.#rows.push(() => (thinks.checked = true));
    element.append(
      h("div", { class: "parameters-head" }, h("h2", {}, "Parameters"), h("button", { type: "button", class: "link", onclick: () => this.#reset() }, "Reset"), h("button", { type: "button", class: "link", onclick: close }, "Close")),
      text("system", { label: "System prompt", rows: 4, placeholder: "You are …" }),
      ...NUMBERS.map((number) => this.#number(number)),
      text("seed", { label: "Seed", rows: 1, placeholder: "none", inputMode: "numeric", note: "same seed, same text" }),
      text("stop", { label: "Stop at", rows: 2, placeholder: "one text a line" }),
      h("label", { class: "check" }, thinks, "Let the model think, if it can"),
    );
  }

  #text(name, { label, note, ...properties }) {
    const input = h("textarea", {
      ...properties,
      value: this.#values[name] ?? "",
      id: `parameter-${name}`,
      oninput: () => {
        if (name === "seed") input.value = input.value.replace(/[^\d-]/g, "");
        this.#set(name, input.value || undefined);
      },
    });
    this.#rows.push(() => (input.value = ""));
    return h("div", { class: "field" }, h("label", { for: input.id }, label), note && h("span", { class: "note" }, note), input);
  }

  /** Empty is the server's own default; a number is sent, whatever it is. */
  #number({ name, label, note, usual, ...bounds }) {
    const set = (value) => {
      const number = value === "" ? undefined : Math.min(Math.max(Number(value), bounds.min), bounds.max);
      slider.value = number ?? usual;
      exact.value = number ?? "";
      this.#set(name, number);
    };
    const value = this.#values[name];
    const id = `parameter-${name}`;
    const exact = h("input", { type: "number", id, ...bounds, value: value ?? "", placeholder: "default", onchange: () => set(exact.value) });
    const slider = h("input", { type: "range", "aria-label": label, tabIndex: -1, ...bounds, value: value ?? usual, oninput: () => set(slider.value) });
    this.#rows.push(() => set(""));
    return h("div", { class: "field number" }, h("label", { for: id }, label), note && h("span", { class: "note" }, note), exact, slider);
  }

  #set(name, value) {
    if (value === undefined) delete this.#values[name];
    else this.#values[name] = value;
    save(this.#values);
  }

  #reset() {
    this.#values = {};
    save(this.#values);
    for (const reset of this.#rows) reset();
  }
}

function load() {
  try {
    return { ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return {};
  }
}

function save(values) {
  try {
    localStorage.setItem(KEY, JSON.stringify(values));
  } catch {
    // The values last as long as the page.
  }
}
