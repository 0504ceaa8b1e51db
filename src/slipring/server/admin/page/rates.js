// SPDX-License-Identifier: Apache-2.0
/**
 * What a server did lately, in steps of half a second by its own clock: how much of each counter was counted,
 * and how high each gauge was, all processes together.
 *
 * A process adds what it has counted between two of its own reports, evenly over the time between them. What
 * it had counted before its first report is therefore in no rate, whether it is heard of for the first time
 * because the page was opened or because it took the place of another; what one has counted that ended since
 * stays; and one that was not heard of for a while makes no spike.
 */

const STEP_MS = 500;
const STEPS = 120;
/** Those that are not settled too. */
const KEPT_STEPS = STEPS + 4;
const WINDOW_STEPS = 20;
const SMOOTHED_STEPS = 4;
/** Processes report twice a second: after this time, a step has been reported by all that are not late. */
const SETTLED_MS = 1000;

const stepOf = (at) => Math.floor(at / STEP_MS);

export class History {
  constructor() {
    this.reset();
  }

  reset() {
    this.reports = new Map();
    this.steps = new Map();
    this.since = Infinity;
    this.latest = -Infinity;
  }

  /** A process has reported its counters, {name: number}. `at`: milliseconds of the server's clock. */
  count(process, pid, at, counters) {
    if (at < this.latest - KEPT_STEPS * STEP_MS) this.reset(); // The server's clock was set back.
    const before = this.reports.get(process);
    this.reports.set(process, { pid, at, counters });
    this.since = Math.min(this.since, at);
    this.latest = Math.max(this.latest, at);
    if (before !== undefined && before.pid === pid && before.at < at) this.spread(before, { at, counters });
    for (const step of this.steps.keys()) if (step < stepOf(this.latest) - KEPT_STEPS) this.steps.delete(step);
  }

  /** The gauges of all processes together, {name: number}, as they are now. */
  gauge(gauges) {
    if (this.latest !== -Infinity) this.stepAt(stepOf(this.latest)).gauges = gauges;
  }

  spread(before, { at, counters }) {
    const last = stepOf(at);
    for (let step = Math.max(stepOf(before.at), last - KEPT_STEPS); step <= last; step += 1) {
      const share = (Math.min(at, (step + 1) * STEP_MS) - Math.max(before.at, step * STEP_MS)) / (at - before.at);
      const { counted } = this.stepAt(step);
      for (const [name, value] of Object.entries(counters)) {
        counted[name] = (counted[name] ?? 0) + Math.max(0, value - (before.counters[name] ?? 0)) * share;
      }
    }
  }

  stepAt(step) {
    let found = this.steps.get(step);
    if (found === undefined) this.steps.set(step, found = { counted: {}, gauges: null });
    return found;
  }

  /** The first and the last step that are known to their end; the last is smaller if there is none. */
  bounds() {
    const last = stepOf(this.latest - SETTLED_MS) - 1;
    return [Math.max(Math.ceil(this.since / STEP_MS), last - STEPS + 1), last];
  }

  /** Steps that are known to their end. */
  get length() {
    const [first, last] = this.bounds();
    return Number.isFinite(last) ? Math.max(0, last - first + 1) : 0;
  }

  /** The average of the last ten seconds, or of as many as are known; null if none is. */
  perSecond(name) {
    const [first, last] = this.bounds();
    return this.length === 0 ? null : this.average(name, Math.max(first, last - WINDOW_STEPS + 1), last);
  }

  average(name, first, last) {
    let sum = 0;
    for (let step = first; step <= last; step += 1) sum += this.steps.get(step)?.counted[name] ?? 0;
    return sum / ((last - first + 1) * STEP_MS / 1000);
  }

  /** The rates of the last minute, each the average of two seconds. */
  rates(name) {
    const [first] = this.bounds();
    return this.map((step) => this.average(name, Math.max(first, step - SMOOTHED_STEPS + 1), step));
  }

  /** A gauge in the last minute; where it is not known, as it was before. */
  levels(name) {
    let level = 0;
    return this.map((step) => {
      level = this.steps.get(step)?.gauges?.[name] ?? level;
      return level;
    });
  }

  map(made) {
    const [first] = this.bounds();
    return Array.from({ length: this.length }, (_, index) => made(first + index));
  }
}

/** Values in a series of the last minute. */
export const MOST_VALUES = STEPS;
