// SPDX-License-Identifier: Apache-2.0
/**
 * The frame of a still figure: an SVG file with its own background and colours, which follow the reader's light
 * or dark setting; a heading on top, and the conditions of the measurement below.
 */

import { h } from "./dom.js";
import { fitted } from "./drawings.js";
import { label } from "./lines.js";

export const WIDTH = 880;
const INDENT = 24;

/** `css`: the stylesheet of the file. Conditions may be empty. */
export function picture({ title, about, subtitle, conditions, css, height }, ...content) {
  const room = WIDTH - 2 * INDENT;
  return h(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: WIDTH,
      height,
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "img",
      "aria-labelledby": "title about",
    },
    h("title", { id: "title" }, title),
    h("desc", { id: "about" }, about),
    h("style", null, css),
    h("rect", { x: 0.5, y: 0.5, width: WIDTH - 1, height: height - 1, rx: 10, class: "paper", "stroke-width": 1 }),
    label(INDENT, 38, fitted(title, room, 18.5), { css: "title" }),
    label(INDENT, 62, fitted(subtitle, room, 13)),
    content,
    conditions && label(INDENT, height - 14, fitted(conditions, room, 12), { css: "small" }),
  );
}
