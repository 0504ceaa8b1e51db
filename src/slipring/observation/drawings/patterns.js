// SPDX-License-Identifier: Apache-2.0
/** The patterns that lie over colours: as SVG definitions, and as fills of a canvas. */

import { h } from "./dom.js";

const TILE = 6;
const PATHS = {
  rising: "M0 6L6 0M-1 1L1 -1M5 7L7 5",
  falling: "M0 0L6 6M-1 5L1 7M5 -1L7 1",
  crossed: "M0 0L6 6M0 6L6 0",
  lines: "M0 3H6",
  dots: "M1.5 1.5h1.6v1.6h-1.6zM4.5 4.5h1.6v1.6h-1.6z",
};

const OPACITY = 0.42;

/** `<defs>` with the patterns of these stages, for one SVG; `prefix` keeps ids apart on a page. */
export function patternDefinitions(prefix, stages) {
  const names = [...new Set(stages.filter(({ pattern, colour }) => PATHS[pattern] && colour).map(({ pattern }) => pattern))];
  return h("defs", null, names.map((pattern) => {
    const isFilled = pattern === "dots";
    return h(
      "pattern",
      { id: `${prefix}-${pattern}`, width: TILE, height: TILE, patternUnits: "userSpaceOnUse" },
      h("path", {
        d: PATHS[pattern],
        stroke: isFilled ? null : "var(--paper)",
        fill: isFilled ? "var(--paper)" : "none",
        "stroke-width": 1,
        opacity: OPACITY,
      }),
    );
  }));
}

/** Rectangles of a stage's colour with its pattern on it; an open one has only a dashed edge. */
export function patterned(prefix, { pattern, colour }, x, y, width, height, radius = 0) {
  if (!colour) {
    return h("rect", { class: "open", x: x + 0.5, y: y + 0.5, width: Math.max(0.5, width - 1), height: height - 1, fill: "none" });
  }
  const box = { x, y, width: Math.max(0.5, width), height, rx: Math.min(radius, width / 2) || null };
  const filled = h("rect", { ...box, class: "fill", fill: colour });
  return PATHS[pattern] ? [filled, h("rect", { ...box, fill: `url(#${prefix}-${pattern})` })] : filled;
}

/** A square with colour and pattern, for a legend. */
export function patch12(prefix, stage) {
  return h(
    "svg",
    { class: "patch", viewBox: "0 0 12 12", "aria-hidden": "true" },
    patternDefinitions(prefix, [stage]),
    patterned(prefix, stage, 0, 0, 12, 12),
  );
}

const fills = new Map();

/** The pattern of a stage as a fill for a canvas, in this ink, or null. */
export function canvasPattern(context, { pattern, colour }, ink) {
  if (!PATHS[pattern] || !colour) return null;
  const id = `${pattern}${ink}`;
  if (!fills.has(id)) {
    const tile = new OffscreenCanvas(TILE * 2, TILE * 2);
    const pen = tile.getContext("2d");
    pen.scale(2, 2);
    pen.globalAlpha = OPACITY;
    pen[pattern === "dots" ? "fillStyle" : "strokeStyle"] = ink;
    pen[pattern === "dots" ? "fill" : "stroke"](new Path2D(PATHS[pattern]));
    const fill = context.createPattern(tile, "repeat");
    fill.setTransform(new DOMMatrix().scale(0.5));
    fills.set(id, fill);
  }
  return fills.get(id);
}
