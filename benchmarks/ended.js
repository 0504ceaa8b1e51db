// SPDX-License-Identifier: Apache-2.0
/** A still figure of loops that end: for each plot, how many have ended by which time. */

import { label, linePlot, swatch, turnAxis, valueAxis } from "./lines.js";
import { written } from "./markup.js";
import { WIDTH, picture } from "./picture.js";

const HEIGHT = 440;
const TOP = 172;
const BOTTOM = 360;
const INDENT = 24;
const LEGEND_Y = 92;
const ROW = 20;
const LABELS = 56;

/** `plots`: [{heading, ticks, series: [{name, style, points}]}]; `at` in s. */
globalThis.draw = ({ plots, ...texts }) => {
  const width = (WIDTH - 2 * INDENT) / plots.length;
  const drawn = plots.map((one, index) => plot(one, INDENT + width * index, width - INDENT));
  return written(picture({ ...texts, height: HEIGHT }, legend(plots[0].series), drawn));
};

function plot({ heading, ticks, series }, left, width) {
  const frame = { left: left + LABELS, right: left + width, top: TOP, bottom: BOTTOM };
  const columns = ticks.map((at) => ({ at, labels: [String(at)], tooltip: "" }));
  const up = valueAxis(series, { quantity: "loops", bottom: BOTTOM, top: TOP, ticks: 4 });
  const across = { ...turnAxis(frame, columns), ticks };
  return [
    label(left, TOP - 18, heading, { css: "head" }),
    linePlot({ frame, series, columns, up, across, caption: "seconds" }),
  ];
}

function legend(series) {
  const width = (WIDTH - 2 * INDENT) / 2;
  return series.map(({ name, style }, index) => {
    const [x, y] = [INDENT + width * (index % 2), LEGEND_Y + ROW * Math.floor(index / 2)];
    return [swatch(style, { x, y: y - 9 }), label(x + 38, y + 2, name, { css: "name" })];
  });
}
