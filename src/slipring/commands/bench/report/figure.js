// SPDX-License-Identifier: Apache-2.0
/** The still figure of a record: a line plot with the names of the modes at the ends of their lines. */

import { h } from "./dom.js";
import { fitted } from "./drawings.js";
import { label, linePlot, swatch, turnAxis, valueAxis } from "./lines.js";
import { rounded, written } from "./markup.js";
import { WIDTH, picture } from "./picture.js";
import { duration } from "./units.js";

const HEIGHT = 360;
const FRAME = { left: 64, right: 530, top: 88, bottom: 288 };
const ROW = 38;

/** `series` as in lines.js; empty if there is nothing to draw. */
globalThis.draw = ({ series, ...texts }) => written(picture({ ...texts, height: HEIGHT }, series.length ? plot(series) : null));

function plot(series) {
  const turns = [...new Set(series.flatMap(({ points }) => points.map(({ at }) => at)))].sort((a, b) => a - b);
  const columns = turns.map((at) => ({ at, labels: [String(at)], tooltip: "" }));
  const up = valueAxis(series, { quantity: "time", bottom: FRAME.bottom, top: FRAME.top, ticks: 4 });
  const across = turnAxis(FRAME, columns, 8);
  return [linePlot({ frame: FRAME, series, columns, across, up, caption: "turn" }), lineEnds(series, across, up)];
}

/** Name and last value of each line on the right, in the order of the values, connected to its end. */
function lineEnds(series, across, up) {
  const start = FRAME.right + 60;
  const ends = series.map(({ name, style, points }) => ({ name, style, ...points.at(-1) }));
  return ends.sort((one, other) => up.at(one.value) - up.at(other.value)).map(({ name, style, at, value }, row) => {
    const y = FRAME.top + 6 + ROW * row;
    const lead = `M${rounded(across.at(at) + 6)} ${rounded(up.at(value))}L${rounded(FRAME.right + 18)} ${rounded(y)}`;
    return [
      h("path", { d: lead, class: "lead" }),
      swatch(style, { x: FRAME.right + 24, y: y - 6 }),
      label(start, y + 5, duration(value), { css: "figure" }),
      label(start, y + 21, fitted(name, WIDTH - start - 10, 13), { css: "name" }),
    ];
  });
}
