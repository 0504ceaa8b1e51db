// SPDX-License-Identifier: Apache-2.0
/** One turn as a waterfall: a line for each stage, from its beginning to its end, overlapping ones too. */

import { h } from "./dom.js";
import { drawing, fitted, labelOn, patternDefinitions, patterned, roundStep, textWidth } from "./drawings.js";
import { stageOf } from "./stages.js";
import { duration } from "./units.js";

const PITCH = 22;
const THICKNESS = 14;
const TOP = 20;

/**
 * `stages`: [{name, start_ms, duration_ms}]; `total_ms`: the length of the time axis; `running`: the name of
 * the stage that goes on until then, or null.
 */
export function waterfall({ id, title, stages, total_ms, running, width }) {
  const rows = stages.map((stage) => ({ ...stage, isRunning: false }));
  if (running) {
    const start_ms = Math.max(0, ...stages.map((one) => one.start_ms + one.duration_ms));
    rows.push({ name: running, start_ms, duration_ms: Math.max(0, total_ms - start_ms), isRunning: true });
  }
  const names = Math.min(width * 0.3, Math.max(0, ...rows.map(({ name }) => textWidth(name))) + 10);
  const scale = (width - names - 6) / (total_ms || 1);
  const height = TOP + PITCH * rows.length + 4;
  const about = rows
    .map(({ name, start_ms, duration_ms }) => `${name} from ${duration(start_ms)}, for ${duration(duration_ms)}.`)
    .join(" ");
  return drawing(
    { id, title, about, width, height },
    patternDefinitions(id, [...new Set(rows.map(({ name }) => stageOf(name)))]),
    timeAxis(names, scale, total_ms, width, height),
    rows.map((row, index) => rowOf(id, row, names, scale, TOP + index * PITCH, width)),
  );
}

function rowOf(id, { name, start_ms, duration_ms, isRunning }, left, scale, y, width) {
  const x = left + start_ms * scale;
  const end = x + Math.max(1, duration_ms * scale);
  const label = `${duration(duration_ms)}${isRunning ? " so far" : ""}`;
  const room = textWidth(label) + 6;
  const isAfter = end + room <= width;
  const isBefore = !isAfter && x - room >= left;
  const place = isAfter ? [end + 5, "start"] : [x - 5, "end"];
  return h(
    "g",
    { class: isRunning ? "segment running" : "segment" },
    h("title", null, `${name}: ${label}, from ${duration(start_ms)}`),
    h("text", { class: "name", x: 0, y: y + 11 }, fitted(name, left - 6)),
    patterned(id, stageOf(name), x, y, end - x, THICKNESS, 3),
    isAfter || isBefore ? h("text", { x: place[0], y: y + 11, "text-anchor": place[1] }, label) : labelOn(stageOf(name), label, (x + end) / 2, y + 11),
  );
}

function timeAxis(left, scale, total, width, height) {
  const ticks = roundTicks(total, Math.max(2, Math.floor((width - left) / 64)));
  return ticks.map((ms) => {
    const x = left + ms * scale;
    const anchor = x + 24 > width ? "end" : ms === 0 ? "start" : "middle";
    return [
      h("line", { class: "grid", x1: x, x2: x, y1: TOP - 4, y2: height }),
      h("text", { x, y: 11, "text-anchor": anchor }, ms === 0 ? "0" : tickLabel(ms)),
    ];
  });
}

/** 0 and round numbers up to the highest; at most about so many. */
function roundTicks(highest, about) {
  if (!(highest > 0)) return [0];
  const step = roundStep(highest / about);
  return Array.from({ length: Math.floor(highest / step + 1e-9) + 1 }, (_, index) => index * step);
}

function tickLabel(ms) {
  const [value, unit] = ms >= 1000 ? [ms / 1000, "s"] : [ms, "ms"];
  return `${+value.toPrecision(3)}\u00a0${unit}`;
}
