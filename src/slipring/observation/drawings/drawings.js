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

/**
 * Scales: `at` maps values from `low` to `high` to coordinates from `start` to `end`; `ticks` are round values
 * in that range.
 */

/** Logarithmic scales over a larger range have ticks at powers of ten only. */
const MANY_FACTORS = 1000;

/** A linear scale from 0 to a tick at or above the highest value. */
export function fromZero(highest, start, end, about = 5) {
  const step = roundStep((highest || 1) / about);
  const count = Math.max(1, Math.ceil((highest || 1) / step - 1e-9));
  const ticks = Array.from({ length: count + 1 }, (_, index) => Number((step * index).toPrecision(12)));
  return scale({ low: 0, high: ticks[count], start, end, ticks });
}

/** A logarithmic scale with ticks at powers of ten, and at 2 and 5 times these if the range is small. */
export function logarithmic(lowest, highest, start, end) {
  const [first, last] = [Math.floor(Math.log10(lowest)), Math.ceil(Math.log10(highest)) + 1];
  const powers = Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
  const steps = powers.flatMap((power) => [power, 2 * power, 5 * power]);
  const low = steps.findLast((step) => step <= lowest);
  const high = steps.find((step) => step > highest);
  const ticks = (high / low <= MANY_FACTORS ? steps : powers).filter((tick) => tick >= low && tick <= high);
  return scale({ low, high, start, end, ticks }, Math.log10);
}

/** A scale of whole numbers, with ticks at the first and at round numbers. */
export function whole(first, last, start, end, about = 6) {
  const step = last > first ? Math.max(1, Math.ceil(roundStep((last - first) / about))) : 1;
  const multiples = Array.from({ length: Math.floor(last / step) }, (_, index) => (index + 1) * step);
  const later = multiples.filter((value) => value > first);
  if (later.length && later[0] - first < step / 2) later.shift();
  return scale({ low: first, high: last, start, end, ticks: [first, ...later] });
}

/** The smallest of 1, 2, 5 times a power of ten that is at least this. */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
}

function scale({ low, high, start, end, ticks }, on = (value) => value) {
  const length = on(high) - on(low);
  const at = (value) => start + (length > 0 ? (on(value) - on(low)) / length : 0.5) * (end - start);
  return { low, high, start, end, ticks, at };
}

/** The patterns that lie over colours: as SVG definitions, and as fills of a canvas. */

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

/** Horizontal stacked bars, each with its name and its total above it. */

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
