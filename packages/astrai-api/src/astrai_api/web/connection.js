/** Whether the server can be used, told to whoever listens; looks again by itself. */

import { ApiFailure, getJson } from "./api.js";

const CALM_SECONDS = 10;
const MAX_WAIT_SECONDS = 8;
const WORDS = { loading: "The model is loading", draining: "The server is shutting down", lost: "The engine has stopped" };

/**
 * `state` is connecting, ready, key, loading, draining, lost or away; `text` says it in words, and
 * `model` is the served model once it is known. Listeners of `change` are told.
 */
export class Connection extends EventTarget {
  state = "connecting";
  text = "Connecting";
  model = null;
  #failures = 0;
  #timer = 0;
  #checking = null;

  constructor() {
    super();
    addEventListener("online", () => this.check());
    document.addEventListener("visibilitychange", () => document.hidden || this.check());
  }

  /** Looks now. */
  check() {
    this.#checking ??= this.#look().finally(() => (this.#checking = null));
    return this.#checking;
  }

  /** Something else found out that the server has a problem. */
  report(failure) {
    if (failure.status === 0 || failure.status === 503) this.check();
    if (failure.status === 401) this.#set("key", failure.message);
  }

  async #look() {
    clearTimeout(this.#timer);
    try {
      if (this.state !== "ready" || !this.model) {
        this.model = (await getJson("v1/models")).data[0];
      } else {
        await getJson("health");
      }
      this.#failures = 0;
      this.#set("ready", this.model.id);
    } catch (error) {
      if (!(error instanceof ApiFailure)) throw error;
      this.#failures += 1;
      await this.#explain(error);
    }
    if (this.state !== "key" && !document.hidden) this.#timer = setTimeout(() => this.check(), this.#wait() * 1000);
  }

  async #explain(error) {
    if (error.status === 401) return this.#set("key", error.message);
    if (error.status !== 503) return this.#set("away", `${error.message} Trying again`);
    const health = await fetch("health").then((answer) => answer.json(), () => ({}));
    this.#set(health.status in WORDS ? health.status : "away", WORDS[health.status] ?? error.message);
  }

  #wait() {
    return this.#failures ? Math.min(2 ** (this.#failures - 1), MAX_WAIT_SECONDS) : CALM_SECONDS;
  }

  #set(state, text) {
    const changed = state !== this.state || text !== this.text;
    this.state = state;
    this.text = text;
    if (changed) this.dispatchEvent(new Event("change"));
  }
}
