// SPDX-License-Identifier: Apache-2.0
/** The still figure of the peers: a bar for each way in which a loop was sent, and the range of its repeats. */

import { h } from "./dom.js";
import { label } from "./lines.js";
import { written } from "./markup.js";
import { picture } from "./picture.js";

const ROW = 30;
const TOP = 104;
const GAP = 44;
const LEFT = 300;
const BAR = 380;

/** `groups`: [{heading, bars: [{name, css, label, value, low, high}]}]; each group has a scale of its own. */
globalThis.draw = ({ groups, ...texts }) => {
  let y = TOP;
  const parts = groups.map(({ heading, bars }) => {
    const scale = BAR / Math.max(...bars.map(({ high }) => high));
    const drawn = [label(24, y - 12, heading, { css: "head" }), bars.map((one, row) => bar(one, y + ROW * row, scale))];
    y += ROW * bars.length + GAP;
    return drawn;
  });
  return written(picture({ ...texts, height: y }, parts));
};

function bar({ name, css, label: text, value, low, high }, y, scale) {
  const [middle, end] = [y + 9, LEFT + high * scale];
  return [
    label(24, y + 14, name, { css: "name" }),
    h("rect", { x: LEFT, y, width: value * scale, height: 18, rx: 2, class: `${css} mark` }),
    h("line", { x1: LEFT + low * scale, y1: middle, x2: end, y2: middle, class: "span" }),
    label(end + 10, y + 14, text, { css: "name" }),
  ];
}
