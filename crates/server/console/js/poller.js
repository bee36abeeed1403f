// Asking again and again without being a burden: slower and slower while nobody answers, and not at all while nobody looks.

/** Longest pause between two tries. Somebody who restarts a server does not want to wait longer for the page to notice. */
const PAUSE_MAX_MS = 15_000;

export class Poller {
  #timer = null;
  #running = null;
  #failures = 0;
  #started = false;

  /**
   * `load` returns a promise; `done(value)` and `failed(problem)` hear how it ended. `every` is the pause after an answer
   * in milliseconds.
   */
  constructor({ every, load, done, failed }) {
    this.every = every;
    this.load = load;
    this.done = done;
    this.failed = failed;
    /** When the last answer came, in the clock of `Date.now()`; null before the first. */
    this.seen = null;
    /** When the next try is due; null while one is running or none is planned. */
    this.due = null;
    document.addEventListener('visibilitychange', () => {
      if (!this.#started) return;
      if (document.hidden) this.#plan(null);
      else this.now();
    });
  }

  start() {
    this.#started = true;
    this.now();
  }

  stop() {
    this.#started = false;
    this.#plan(null);
  }

  /** Tries at once; a try that is under way is waited for instead. */
  now() {
    this.#running ??= this.#try().finally(() => { this.#running = null; });
    return this.#running;
  }

  async #try() {
    this.#plan(null);
    let value;
    let problem = null;
    try {
      value = await this.load();
    } catch (error) {
      problem = error;
    }
    this.#failures = problem === null ? 0 : this.#failures + 1;
    if (problem === null) this.seen = Date.now();
    // Pages that lost the same server must not come back in step.
    const pause = problem === null ? this.every
      : Math.min(this.every * 2 ** (this.#failures - 1), PAUSE_MAX_MS) * (0.8 + 0.4 * Math.random());
    if (this.#started && !document.hidden) this.#plan(pause);
    if (problem === null) this.done(value);
    else this.failed(problem);
  }

  #plan(pause) {
    clearTimeout(this.#timer);
    this.due = pause === null ? null : Date.now() + pause;
    if (pause !== null) this.#timer = setTimeout(() => this.now(), pause);
  }
}
