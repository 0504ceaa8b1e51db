// SPDX-License-Identifier: Apache-2.0
/** A still figure of much at once: for each plot, how many run at a time against how long that takes. */

import { label, linePlot, swatch, valueAxis } from "./lines.js";
import { written } from "./markup.js";
import { WIDTH, picture } from "./picture.js";
import { duration } from "./units.js";

const HEIGHT = 420;
const TOP = 148;
const BOTTOM = 340;
const INDENT = 24;
const LEGEND_Y = 92;
const LABELS = 46;

/** `plots`: [{heading, caption, amounts, series: [{name, style, values: [{value, low, high}]}]}], in ms. */
globalThis.draw = ({ plots, ...texts }) => {
  const width = (WIDTH - 2 * INDENT) / plots.length;
  const drawn = plots.map((one, index) => plot(one, INDENT + width * index, width - INDENT));
  return written(picture({ ...texts, height: HEIGHT }, plots.length ? legend(plots[0].series) : null, drawn));
};

function plot({ heading, caption, amounts, series }, left, width) {
  const frame = { left: left + LABELS, right: left + width - LABELS, top: TOP, bottom: BOTTOM };
  const lines = series.map(({ name, style, values }) => ({
    name,
    style,
    points: values.map((value, index) => ({ at: amounts[index], ...value })),
  }));
  const columns = amounts.map((at) => ({ at, labels: [String(at)], tooltip: "" }));
  const up = valueAxis(lines, { quantity: "time", bottom: BOTTOM, top: TOP, ticks: 4 });
  return [
    label(left, TOP - 18, heading, { css: "head" }),
    linePlot({ frame, series: lines, columns, up, across: doublings(frame, amounts), caption }),
    ends(lines, frame, up),
  ];
}

/** A scale on which twice as many loops are always as far apart. */
function doublings({ left, right }, amounts) {
  const [start, end] = [left + 10, right - 10];
  const [low, high] = [Math.log2(amounts[0]), Math.log2(amounts.at(-1))];
  return { low, high, start, end, ticks: amounts, at: (amount) => start + ((Math.log2(amount) - low) / (high - low || 1)) * (end - start) };
}

/** The last value of each line, on the right, moved apart where they would overlap. */
function ends(lines, { right }, up) {
  const last = lines.map(({ points }) => points.at(-1).value).sort((one, other) => other - one);
  let free = 0;
  return last.map((value) => {
    free = Math.max(up.at(value) + 4, free + 15);
    return label(right + 2, free, duration(value), { css: "name" });
  });
}

function legend(series) {
  const width = (WIDTH - 2 * INDENT) / series.length;
  return series.map(({ name, style }, index) => {
    const x = INDENT + width * index;
    return [swatch(style, { x, y: LEGEND_Y - 9 }), label(x + 38, LEGEND_Y + 2, name, { css: "name" })];
  });
}
