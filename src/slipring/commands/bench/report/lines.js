// SPDX-License-Identifier: Apache-2.0
/**
 * Line plots with bands, and their legends. The report and the still figure draw with this.
 *
 * `series`: [{name, style: {css, dash, mark}, points: [{at, value, low, high}]}]: `css` is the class that sets
 * the colour. `columns`: [{at, labels, tooltip}]: one for each position on the horizontal axis.
 */

import { h } from "./dom.js";
import { LINE, TEXT, drawing, fromZero, logarithmic, textWidth, whole } from "./drawings.js";
import { rounded } from "./markup.js";
import { SPACE, duration, size, sizeUnit, timeUnit } from "./units.js";

const WIDTH = 420;
const HEIGHT = 240;
const TOP = 10;
const MARK = 2.8;
const MOST_MARKS = 14;
const TICK_GAP = 6;
const QUANTITIES = {
  time: { format: duration, unit: timeUnit },
  size: { format: size, unit: sizeUnit },
  loops: { format: String, unit: () => [1, "loops"] },
};
/** Corners of markers, relative to the centre, in units of their size. */
const CORNERS = {
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
  diamond: [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]],
  cross: [
    [-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4],
    [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4],
  ],
  bar: [[-0.45, -1.4], [0.45, -1.4], [0.45, 1.4], [-0.45, 1.4]],
};

/** A plot as large as its labels leave room for, as a drawing of its own. */
export function lineChart({ id, title, about, caption, series, columns, quantity, is_log }) {
  const bottom = HEIGHT - LINE * (columns[0].labels.length + 1) - 8;
  const up = valueAxis(series, { quantity, isLog: is_log, bottom, top: TOP });
  const margin = Math.max(12, ...columns.at(-1).labels.map((text) => textWidth(text) / 2));
  const left = Math.max(...up.labels.map((text) => textWidth(text))) + 10;
  const frame = { left, right: WIDTH - margin, top: TOP, bottom };
  return drawing(
    { id, title, about, width: WIDTH, height: HEIGHT },
    linePlot({ frame, series, columns, up, across: turnAxis(frame, columns), caption }),
  );
}

/** The vertical scale, with the labels of its ticks; the highest one shows the unit. */
export function valueAxis(series, { quantity, isLog = false, bottom, top, ticks = 5 }) {
  const { format, unit } = QUANTITIES[quantity];
  const points = series.flatMap((one) => one.points);
  const highest = Math.max(...points.map(({ high }) => high));
  if (isLog) {
    const scale = logarithmic(Math.min(...points.map(({ low }) => low)), highest, bottom, top);
    return { ...scale, labels: scale.ticks.map((tick) => withoutZeros(format(tick))) };
  }
  const [factor, name] = unit(highest);
  const scale = fromZero(highest / factor, bottom, top, ticks);
  const labels = scale.ticks.map(String);
  labels[labels.length - 1] += SPACE + name;
  return { ...scale, labels, ticks: scale.ticks.map((tick) => tick * factor), at: (value) => scale.at(value / factor) };
}

/** The horizontal scale. */
export function turnAxis({ left, right }, columns, ticks = 6) {
  const inset = Math.min(12, (right - left) / 2 / columns.length);
  return whole(columns[0].at, columns.at(-1).at, left + inset, right - inset, ticks);
}

/** Axes with labels, a band and a line for each series, and a tooltip for each column that has one. */
export function linePlot({ frame, series, columns, across, up, caption }) {
  const below = frame.bottom + LINE * (columns[0].labels.length + 1) + 3;
  return [
    verticalAxis(frame, up),
    horizontalAxis(frame, across, columns),
    label((frame.left + frame.right) / 2, below, caption, { anchor: "middle", css: "caption" }),
    series.map((one) => band(one, across, up)),
    series.toReversed().map((one) => line(one, across, up)),
    tooltips(frame, across, columns.filter(({ tooltip }) => tooltip)),
  ];
}

/** A text at a place in a drawing. */
export function label(x, y, text, { anchor = null, css = null } = {}) {
  return h("text", { x, y, "text-anchor": anchor, class: css }, text);
}

/** A sample of a line, for a legend; at a place within a drawing. */
export function swatch({ css, dash, mark }, { x = null, y = null } = {}) {
  return h(
    "svg",
    { viewBox: "0 0 30 12", x, y, width: 30, height: 12, class: "swatch", "aria-hidden": "true" },
    h("path", { d: "M1 6H29", class: `line ${css}`, "stroke-dasharray": dash }),
    h("path", { d: shape(mark, 15, 6), class: `mark ${css}` }),
  );
}

/** Grid lines with their labels on the left. */
function verticalAxis({ left, right }, { ticks, labels, at }) {
  return ticks.map((tick, index) => {
    const y = at(tick);
    return [
      h("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }),
      label(left - TICK_GAP, y + TEXT * 0.35, labels[index], { anchor: "end" }),
    ];
  });
}

/** The axis with labels below its ticks, leaving out those that would overlap. */
function horizontalAxis({ left, right, bottom }, { ticks, at }, columns) {
  const parts = [h("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" })];
  let freeFrom = 0;
  for (const column of columns.filter((one) => ticks.includes(one.at))) {
    const x = at(column.at);
    const half = Math.max(...column.labels.map((text) => textWidth(text))) / 2;
    if (x - half < freeFrom) continue;
    freeFrom = x + half + TICK_GAP;
    parts.push(h("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "axis" }));
    column.labels.forEach((text, row) => parts.push(label(x, bottom + 5 + LINE * (row + 0.8), text, { anchor: "middle" })));
  }
  return parts;
}

/** The range of each point; nothing if no point has one. */
function band({ points, style }, across, up) {
  if (points.length < 2 || points.every(({ low, high }) => low === high)) return null;
  const tops = points.map(({ at, high }) => [across.at(at), up.at(high)]);
  const bottoms = points.toReversed().map(({ at, low }) => [across.at(at), up.at(low)]);
  return h("path", { d: `${path([...tops, ...bottoms])}Z`, class: `band ${style.css}` });
}

function line({ points, style: { css, dash, mark } }, across, up) {
  const places = points.map(({ at, value }) => [across.at(at), up.at(value)]);
  const every = Math.ceil(places.length / MOST_MARKS);
  const marked = places.toReversed().filter((_, index) => index % every === 0);
  return [
    h("path", { d: path(places), class: `line ${css}`, "stroke-dasharray": dash }),
    h("path", { d: marked.map(([x, y]) => shape(mark, x, y)).join(""), class: `mark ${css}` }),
  ];
}

/** One transparent strip for each column. */
function tooltips({ left, right, top, bottom }, { low, high, start, end, at }, columns) {
  const half = (end - start) / Math.max(1, high - low) / 2;
  return columns.map((column) => {
    const [from, to] = [Math.max(left, at(column.at) - half), Math.min(right, at(column.at) + half)];
    const strip = h("rect", { x: from, y: top, width: to - from, height: bottom - top });
    return h("g", { class: "turn" }, h("title", null, column.tooltip), strip);
  });
}

function shape(mark, x, y) {
  if (mark !== "circle") return `${path(CORNERS[mark].map(([right, down]) => [x + right * MARK, y + down * MARK]))}Z`;
  const half = `a${MARK} ${MARK} 0 1 0 `;
  return `M${rounded(x - MARK)} ${rounded(y)}${half}${rounded(2 * MARK)} 0${half}${rounded(-2 * MARK)} 0Z`;
}

function path(places) {
  return `M${places.map(([x, y]) => `${rounded(x)} ${rounded(y)}`).join("L")}`;
}

/** 1.00 kB becomes 1 kB. */
function withoutZeros(text) {
  const [number, unit] = text.split(SPACE);
  return `${Number(number)}${SPACE}${unit}`;
}
