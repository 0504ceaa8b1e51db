// SPDX-License-Identifier: Apache-2.0
/** Horizontal stacked bars, each with its name and its total above it. */

import { h } from "./dom.js";
import { LINE, TEXT, drawing, fitted, textWidth } from "./drawings.js";
import { patternDefinitions, patterned } from "./patterns.js";

const PITCH = 46;
const THICKNESS = 20;
const THIN = 12;
const PATCH = 9;

/**
 * `bars`: [{name, label, segments: [{name, label, value, colour, pattern}]}]; all on one scale, from zero to
 * the longest. `isExplained`: below each bar its segments are named, with their labels; else they are named in it,
 * as far as there is room.
 */
export function stackedBars({ id, title, width, bars, isExplained = false }) {
  const pitch = isExplained ? PITCH + 6 : PITCH;
  const totals = bars.map(({ segments }) => segments.reduce((sum, { value }) => sum + value, 0));
  const scale = (width - 4) / (Math.max(...totals) || 1);
  const about = bars
    .map(({ name, segments }) => `${name}: ${segments.map((one) => `${one.name} ${one.label}`).join(", ")}.`)
    .join(" ");
  return drawing(
    { id, title, about, width, height: pitch * bars.length + 4 },
    patternDefinitions(id, bars.flatMap(({ segments }) => segments)),
    bars.map((bar, index) => [
      h("text", { class: "name", x: 2, y: index * pitch + TEXT }, fitted(bar.name, width - textWidth(bar.label) - 16)),
      h("text", { class: "figure", x: width - 2, y: index * pitch + TEXT, "text-anchor": "end" }, bar.label),
      segmentsOf(id, bar, scale, index * pitch + LINE + (isExplained ? 2 : 4), isExplained),
      isExplained && explained(id, bar, index * pitch + LINE + THIN + 5),
    ]),
  );
}

function segmentsOf(id, bar, scale, y, isThin) {
  const thickness = isThin ? THIN : THICKNESS;
  let at = 2;
  return bar.segments.map((segment) => {
    const [left, room] = [at, segment.value * scale];
    at += room;
    const hasName = !isThin && textWidth(segment.name) + 18 <= room;
    const middle = y + thickness / 2 + TEXT * 0.35;
    return h(
      "g",
      { class: "segment" },
      h("title", null, `${bar.name}, ${segment.name}: ${segment.label}`),
      patterned(id, segment, left, y, Math.max(0.3, room - 0.6), thickness, 2),
      hasName && labelOn(segment, segment.name, left + room / 2, middle),
    );
  });
}

/** Colour, name and label of each segment, one after the other. */
function explained(id, { segments }, y) {
  let at = 2;
  return segments.map((segment) => {
    const text = `${segment.name} ${segment.label}`;
    const left = at;
    at += PATCH + 5 + textWidth(text) + 14;
    return [
      patterned(id, segment, left, y, PATCH, PATCH, 2),
      h("text", { x: left + PATCH + 5, y: y + PATCH }, text),
    ];
  });
}

/** A text in the middle of a segment, on a ground of its own, which can be read on every colour. */
export function labelOn({ colour }, text, x, y) {
  const width = textWidth(text) + 8;
  return [
    colour && h("rect", { class: "ground", x: x - width / 2, y: y - TEXT + 1, width, height: TEXT + 3, rx: 3 }),
    h("text", { class: "inside", x, y, "text-anchor": "middle" }, text),
  ];
}
