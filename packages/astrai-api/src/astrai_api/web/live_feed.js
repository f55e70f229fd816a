/** The live feed: connected while it is looked at, again by itself when it breaks. */

import { ApiFailure, call } from "./api.js";
import { events } from "./sse.js";

const MAX_WAIT_SECONDS = 8;

export class LiveFeed {
  #stopper = null;

  /** @param {{engine: Function, frame: Function, state: Function}} listeners what to tell of */
  constructor(listeners) {
    this.listeners = listeners;
  }

  get isOpen() {
    return this.#stopper !== null;
  }

  open() {
    if (this.isOpen) return;
    this.#stopper = new AbortController();
    this.#run(this.#stopper.signal);
  }

  close() {
    this.#stopper?.abort();
    this.#stopper = null;
  }

  async #run(signal) {
    for (let failures = 0; !signal.aborted; failures += 1) {
      this.listeners.state("connecting");
      try {
        await this.#read(signal, () => (failures = 0));
        this.listeners.state("away", new ApiFailure("The feed has ended."));
      } catch (error) {
        if (signal.aborted) return;
        this.listeners.state("away", error instanceof ApiFailure ? error : new ApiFailure("The feed was lost."));
      }
      await pause(Math.min(2 ** failures, MAX_WAIT_SECONDS), signal);
    }
  }

  async #read(signal, onFrame) {
    const response = await call("engine/live", { accept: "text/event-stream", signal });
    for await (const { name, data } of events(response)) {
      if (name === "engine") {
        this.listeners.engine(JSON.parse(data));
        this.listeners.state("live");
      } else if (name === "frame") {
        onFrame();
        this.listeners.frame(JSON.parse(data));
      }
    }
  }
}

const pause = (seconds, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", resolve);
  });
