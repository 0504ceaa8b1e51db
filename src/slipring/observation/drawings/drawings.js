// SPDX-License-Identifier: Apache-2.0
/**
 * What all SVG drawings share: their frame, and texts that fit. Texts are measured by the browser; where there
 * is none, widths are estimated, rather too wide than too narrow, because the fonts of readers differ.
 */

import { h } from "./dom.js";

export const LINE = 14;
export const TEXT = 12;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const NARROW = new Set(" .,:;|ijlt'’!()[]\u00a0");
const WIDE = new Set("mwMW<>&@%+=…\ufffd");

let ruler = null;

/** The width of a text in the font of all drawings. */
export function textWidth(text, size = TEXT) {
  if (typeof document === "undefined") return size * [...text].reduce((sum, letter) => sum + estimated(letter), 0);
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

/** A share of the size of the font. */
function estimated(letter) {
  if (NARROW.has(letter)) return 0.38;
  if (WIDE.has(letter)) return 0.95;
  return /\p{Lu}/u.test(letter) ? 0.72 : 0.62;
}

/** A text, cut with an ellipsis where it is wider than this. */
export function fitted(text, width, size = TEXT) {
  if (textWidth(text, size) <= width) return text;
  const kept = [...text];
  while (kept.length && textWidth(`${kept.join("")}…`, size) > width) kept.pop();
  return kept.length ? `${kept.join("").trimEnd()}…` : "";
}

/** An SVG with title and description for screen readers. */
export function drawing({ id, title, about, width, height }, ...content) {
  return h(
    "svg",
    { class: "drawing", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${id}-title ${id}-about` },
    h("title", { id: `${id}-title` }, title),
    h("desc", { id: `${id}-about` }, about),
    content,
  );
}
