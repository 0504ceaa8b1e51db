// SPDX-License-Identifier: Apache-2.0
/**
 * Scales: `at` maps values from `low` to `high` to coordinates from `start` to `end`; `ticks` are round values
 * in that range.
 */

/** Logarithmic scales over a larger range have ticks at powers of ten only. */
const MANY_FACTORS = 1000;

/** A linear scale from 0 to a tick at or above the highest value. */
export function fromZero(highest, start, end, about = 5) {
  const step = roundStep((highest || 1) / about);
  const count = Math.max(1, Math.ceil((highest || 1) / step - 1e-9));
  const ticks = Array.from({ length: count + 1 }, (_, index) => Number((step * index).toPrecision(12)));
  return scale({ low: 0, high: ticks[count], start, end, ticks });
}

/** A logarithmic scale with ticks at powers of ten, and at 2 and 5 times these if the range is small. */
export function logarithmic(lowest, highest, start, end) {
  const [first, last] = [Math.floor(Math.log10(lowest)), Math.ceil(Math.log10(highest)) + 1];
  const powers = Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
  const steps = powers.flatMap((power) => [power, 2 * power, 5 * power]);
  const low = steps.findLast((step) => step <= lowest);
  const high = steps.find((step) => step > highest);
  const ticks = (high / low <= MANY_FACTORS ? steps : powers).filter((tick) => tick >= low && tick <= high);
  return scale({ low, high, start, end, ticks }, Math.log10);
}

/** A scale of whole numbers, with ticks at the first and at round numbers. */
export function whole(first, last, start, end, about = 6) {
  const step = last > first ? Math.max(1, Math.ceil(roundStep((last - first) / about))) : 1;
  const multiples = Array.from({ length: Math.floor(last / step) }, (_, index) => (index + 1) * step);
  const later = multiples.filter((value) => value > first);
  if (later.length && later[0] - first < step / 2) later.shift();
  return scale({ low: first, high: last, start, end, ticks: [first, ...later] });
}

/** The smallest of 1, 2, 5 times a power of ten that is at least this. */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
}

function scale({ low, high, start, end, ticks }, on = (value) => value) {
  const length = on(high) - on(low);
  const at = (value) => start + (length > 0 ? (on(value) - on(low)) / length : 0.5) * (end - start);
  return { low, high, start, end, ticks, at };
}
