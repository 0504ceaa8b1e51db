// SPDX-License-Identifier: Apache-2.0
/** Figures with three significant digits and a unit: 1.69 s, 359 kB, 31 %; and durations in words. */

export const SPACE = "\u00a0";
const TIMES = [[1000, "s"], [1, "ms"]];
const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const COUNTS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function duration(ms) {
  if (ms >= 600_000) return inUnit(ms / 60_000, "min");
  const [factor, unit] = timeUnit(ms);
  return inUnit(ms / factor, unit);
}

/** Bytes; 1 kB is 1000 bytes. */
export function size(bytes) {
  const [factor, unit] = sizeUnit(bytes);
  return inUnit(bytes / factor, unit);
}

/** The milliseconds and the name of the unit for times up to this. */
export function timeUnit(highestMs) {
  return largest(TIMES, highestMs);
}

/** The bytes and the name of the unit for sizes up to this. */
export function sizeUnit(highest) {
  return largest(SIZES, highest);
}

/** 12.3k: short; whole up to 9999. */
export function count(number) {
  if (number < 9999.5) return String(Math.round(number));
  const [factor, unit] = largest(COUNTS, number);
  return digits(number / factor) + unit;
}

/** A rate per second: one decimal while it is small. */
export function rate(perSecond) {
  if (perSecond === 0) return "0";
  return perSecond < 9.95 ? perSecond.toFixed(1) : count(perSecond);
}

/** Whole percents; tenths below 1 % and above 99 %. */
export function percent(share) {
  const hundredths = share * 100;
  if (hundredths > 0 && hundredths < 0.05) return `<0.1${SPACE}%`;
  const isNearEnd = hundredths !== 0 && (hundredths < 0.95 || (hundredths > 99 && hundredths < 100));
  return (isNearEnd ? Math.min(hundredths, 99.9).toFixed(1) : hundredths.toFixed(0)) + SPACE + "%";
}

/** 4 s, 2 min 5 s, 3 h 20 min, 2 days 4 h: whole units, for times that are counted up or down. */
export function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}${SPACE}s`;
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days}${SPACE}d${hours ? ` ${hours}${SPACE}h` : ""}`;
  if (hours) return `${hours}${SPACE}h${minutes ? ` ${minutes}${SPACE}min` : ""}`;
  return `${minutes}${SPACE}min${whole % 60 ? ` ${whole % 60}${SPACE}s` : ""}`;
}

/** 1 turn, 2 turns. */
export function counted(number, noun, plural = `${noun}s`) {
  return `${count(number)}${SPACE}${number === 1 ? noun : plural}`;
}

/** resp_1234…cdef: enough of an id to recognise it. */
export function shortId(id) {
  return id.length <= 16 ? id : `${id.slice(0, 9)}…${id.slice(-4)}`;
}

function largest(units, value) {
  return units.find(([factor]) => Math.abs(value) >= 0.9995 * factor) ?? units[units.length - 1];
}

function inUnit(value, unit) {
  return `${unit === "B" ? value.toFixed(0) : digits(value)}${SPACE}${unit}`;
}

function digits(value) {
  const size = Math.abs(value);
  if (size === 0 || size >= 99.95) return value.toFixed(0);
  return value.toFixed(size < 9.995 ? 2 : 1);
}
