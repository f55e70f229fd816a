/** What the frames of the feed add up to: steps, series, and the life of each request. */

const MAX_STEPS = 600;
const MAX_ENDED = 40;
export const WINDOW_SECONDS = 120;

/**
 * The life of one request, as far as it was watched.
 * @typedef {Object} Life
 * @property {string} id
 * @property {Object} now its last state in a frame
 * @property {{at: number, seconds: number, tokens: number}[]} chunks of its prompt
 * @property {number|null} admittedAt when its first chunk began
 * @property {number|null} firstTokenAt
 * @property {{at: number, tokens: number}[]} growth tokens generated, frame by frame
 * @property {number[]} preemptedAt
 * @property {boolean} isWhole it was watched from its beginning
 * @property {string|null} reason why it ended
 * @property {number|null} endedAt
 */

export class LiveHistory {
  engine = null;
  frame = null;
  /** @type {Object[]} the last steps, oldest first */
  steps = [];
  /** @type {Map<string, Life>} those that run or wait, then those that ended last */
  lives = new Map();
  /** @type {{at: number, seconds: number}[]} times to first tokens */
  firstTokens = [];
  #arrivedAt = 0;
  #missed = false;

  /** A new connection: another engine, perhaps, whose clock begins elsewhere. */
  restart(engine) {
    Object.assign(this, { engine, frame: null, steps: [], lives: new Map(), firstTokens: [] });
  }

  /** The engine's clock now, in its seconds. */
  get now() {
    return this.frame ? this.frame.at + (performance.now() - this.#arrivedAt) / 1000 : 0;
  }

  add(frame) {
    this.#missed = !this.frame || frame.number !== this.frame.number + 1;
    this.frame = frame;
    this.#arrivedAt = performance.now();
    for (const request of frame.requests) this.#meet(request);
    for (const request of frame.ended) this.#meet(request);
    for (const step of frame.steps) this.#addStep(step);
    for (const request of frame.requests) this.#follow(request);
    for (const request of frame.ended) this.#end(request);
    this.steps.splice(0, this.steps.length - MAX_STEPS);
    this.firstTokens = this.firstTokens.filter(({ at }) => at > frame.at - WINDOW_SECONDS);
    this.#forget();
  }

  byRequestId(requestId) {
    return [...this.lives.values()].find((life) => life.now.request_id === requestId);
  }

  #meet(request) {
    if (this.lives.has(request.task_id)) return;
    this.lives.set(request.task_id, {
      id: request.task_id,
      now: request,
      chunks: [],
      admittedAt: null,
      firstTokenAt: null,
      growth: [],
      preemptedAt: [],
      isWhole: !this.#missed || request.is_running === false || !request.num_computed,
      reason: null,
      endedAt: null,
    });
  }

  #addStep(step) {
    this.steps.push(step);
    for (const { task_id: id, num_tokens: tokens, is_last: isLast } of step.chunks) {
      const life = this.lives.get(id);
      if (!life) continue;
      life.chunks.push({ at: step.ended_at - step.seconds, seconds: step.seconds, tokens });
      life.admittedAt ??= step.ended_at - step.seconds;
      if (isLast && life.isWhole && life.firstTokenAt === null) {
        life.firstTokenAt = step.ended_at;
        this.firstTokens.push({ at: step.ended_at, seconds: step.ended_at - life.now.submitted_at });
      }
    }
  }

  #follow(request) {
    const life = this.lives.get(request.task_id);
    if (life.now.is_running && !request.is_running) life.preemptedAt.push(this.frame.at);
    life.now = request;
    life.growth.push({ at: this.frame.at, tokens: request.num_generated });
  }

  #end(request) {
    const life = this.lives.get(request.task_id);
    life.now = { ...life.now, ...request, is_running: false, page_runs: [] };
    life.growth.push({ at: request.ended_at, tokens: request.num_generated });
    life.reason = request.reason;
    life.endedAt = request.ended_at;
  }

  /** Keeps those of the present, and the last that ended. */
  #forget() {
    const present = new Set(this.frame.requests.map((request) => request.task_id));
    const ended = [...this.lives.values()].filter((life) => !present.has(life.id));
    for (const life of ended.slice(0, Math.max(0, ended.length - MAX_ENDED))) this.lives.delete(life.id);
  }
}

/** Tokens generated a second, in bins of `width` seconds up to `now`, oldest first. */
export function tokenRates(steps, now, width = 1) {
  const bins = new Array(Math.ceil(WINDOW_SECONDS / width)).fill(0);
  for (const step of steps) {
    const bin = bins.length - 1 - Math.floor((now - step.ended_at) / width);
    if (bin >= 0 && bin < bins.length) bins[bin] += step.num_generated / width;
  }
  return bins;
}

/** The time between two tokens of a stream: that of the steps in which sequences decode. */
export const tokenGaps = (steps) => steps.filter((step) => step.num_decoding).map(({ ended_at: at, seconds }) => ({ at, seconds }));
