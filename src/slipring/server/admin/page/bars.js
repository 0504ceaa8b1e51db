// SPDX-License-Identifier: Apache-2.0
/** Horizontal stacked bars, each with its name and its total above it. */

import { h } from "./dom.js";
import { LINE, TEXT, drawing, fitted, textWidth } from "./drawings.js";
import { patternDefinitions, patterned } from "./patterns.js";
import { inkOn } from "./stages.js";

const PITCH = 46;
const THICKNESS = 20;

/**
 * `bars`: [{name, label, segments: [{name, label, value, colour, pattern}]}]; all on one scale, from zero to
 * the longest.
 */
export function stackedBars({ id, title, width, bars }) {
  const totals = bars.map(({ segments }) => segments.reduce((sum, { value }) => sum + value, 0));
  const scale = (width - 4) / (Math.max(...totals) || 1);
  const about = bars
    .map(({ name, segments }) => `${name}: ${segments.map((one) => `${one.name} ${one.label}`).join(", ")}.`)
    .join(" ");
  return drawing(
    { id, title, about, width, height: PITCH * bars.length + 4 },
    patternDefinitions(id, unique(bars.flatMap(({ segments }) => segments))),
    bars.map((bar, index) => [
      h("text", { class: "name", x: 2, y: index * PITCH + TEXT }, fitted(bar.name, width - textWidth(bar.label) - 16)),
      h("text", { class: "figure", x: width - 2, y: index * PITCH + TEXT, "text-anchor": "end" }, bar.label),
      segmentsOf(id, bar, scale, index * PITCH + LINE + 4),
    ]),
  );
}

function segmentsOf(id, bar, scale, y) {
  let at = 2;
  return bar.segments.map((segment) => {
    const [left, room] = [at, segment.value * scale];
    at += room;
    const hasName = textWidth(segment.name) + 10 <= room;
    const middle = y + THICKNESS / 2 + TEXT * 0.35;
    return h(
      "g",
      { class: "segment" },
      h("title", null, `${bar.name}, ${segment.name}: ${segment.label}`),
      patterned(id, segment, left, y, Math.max(0.3, room - 0.6), THICKNESS),
      hasName && labelOn(segment, segment.name, left + room / 2, middle),
    );
  });
}

/** A text in the middle of a segment; on a pattern it gets a ground of its own. */
export function labelOn({ colour, pattern }, text, x, y) {
  const width = textWidth(text) + 8;
  return [
    colour && pattern !== "plain" && h("rect", { x: x - width / 2, y: y - TEXT + 1, width, height: TEXT + 3, fill: colour }),
    h("text", { class: "inside", x, y, "text-anchor": "middle", style: colour ? { fill: inkOn(colour) } : {} }, text),
  ];
}

function unique(segments) {
  return [...new Map(segments.map((one) => [`${one.pattern}${one.colour}`, one])).values()];
}
