// SPDX-License-Identifier: Apache-2.0
/**
 * Turns on a time axis, drawn on a canvas: bars by stage, the running one growing, and between them the time
 * that the client took. Times are milliseconds. Used by the live page, by recordings and by the report.
 *
 * A turn here is {start, end, stages: [{name, start_ms, duration_ms}], phase, status, marks, id, previous};
 * `end` is null while it runs, and `phase` is null once it has ended.
 */

import { canvasPattern } from "./drawings.js";
import { inkOn, stageInPhase, stageOf } from "./stages.js";
import { SIGNS, outcomeOf } from "./turns.js";
import { duration, lasting } from "./units.js";

export const BAR = 14;
const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const LETTERS = { fork: "F", warmup: "W", steered: "S", compaction: "C", rollout: "R", background: "B" };
const LEAST = 2;
const ROUND = 3;
const SIGN = 6;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].map((s) => s * 1000);

/** Maps times between `from` and `to` to coordinates between `left` and `right`. */
export function timeScale(from, to, left, right) {
  const factor = (right - left) / (to - from || 1);
  return { from, to, left, right, factor, x: (time) => left + (time - from) * factor };
}

/** A canvas fitted to a size in CSS pixels; returns its context, or null if it has no size. */
export function fitCanvas(canvas, width, height) {
  const density = Math.min(window.devicePixelRatio || 1, 2);
  const [across, down] = [Math.round(width * density), Math.round(height * density)];
  if (across < 1 || down < 1) return null;
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return pen;
}

/** The colours that a drawing takes from the page, light or dark; `of` finds any by its variable, or `var(…)`. */
export function inks(element) {
  const style = getComputedStyle(element);
  const found = new Map();
  const of = (variable) => {
    const name = variable.replace(/^var\((.*)\)$/, "$1");
    if (!found.has(name)) found.set(name, style.getPropertyValue(name).trim());
    return found.get(name);
  };
  return { of, ink: of("--ink"), soft: of("--soft"), rule: of("--rule"), paper: of("--paper") };
}

/**
 * Vertical lines, and their labels at `labelY`. With `origin` null labels count back from the end of the
 * scale, which is now; else they count from the origin.
 */
export function drawTimes(pen, scale, colours, { origin, labelY, top, bottom }) {
  const most = Math.max(2, Math.floor((scale.right - scale.left) / 84));
  const step = STEPS.find((each) => (scale.to - scale.from) / each <= most) ?? STEPS[STEPS.length - 1];
  const base = origin ?? scale.to;
  const first = Math.ceil((scale.from - base) / step) * step;
  pen.textAlign = "center";
  for (let at = first; base + at <= scale.to + 1; at += step) {
    const x = Math.round(scale.x(base + at)) + 0.5;
    pen.fillStyle = colours.rule;
    pen.fillRect(x - 0.5, top, 1, bottom - top);
    if (labelY === null) continue;
    const text = origin === null ? (at === 0 ? "now" : `−${lasting(-at / 1000)}`) : lasting(at / 1000);
    const half = widthOf(pen, text) / 2;
    pen.fillStyle = colours.soft;
    pen.fillText(text, Math.min(Math.max(x, scale.left + half), scale.right - half), labelY);
  }
}

/** The end of a turn, or now while it runs. */
export function endOf(turn, now) {
  return turn.end ?? Math.max(now, turn.start);
}

/**
 * One lane: `turns` in the order of their beginnings. `hasWaits`: the time between them is the client's.
 * `isOpen`: the lane may continue, so the time since its last turn is too.
 */
export function drawLane(pen, turns, scale, y, colours, { now, hasWaits, isOpen, selected }) {
  let first = turns.length;
  while (first > 0 && endOf(turns[first - 1], now) >= scale.from) first -= 1;
  for (let index = first; index < turns.length; index += 1) {
    const turn = turns[index];
    if (turn.start > scale.to) break;
    if (hasWaits && index > 0) drawWait(pen, turns[index - 1], turn, scale, y, colours, now);
    const before = hasWaits && index > 0 ? endOf(turns[index - 1], now) : -Infinity;
    drawTurn(pen, turn, before > turn.start ? queued(pen, turn, before, scale, y, colours, now) : scale, y, colours, now, turn === selected);
  }
  const last = turns[turns.length - 1];
  if (isOpen && last !== undefined && last.end !== null && last.end < scale.to) {
    drawGap(pen, last.end, Math.min(now, scale.to), scale, y, colours, "open");
  }
}

/**
 * A turn that was sent while its lane was busy: a thin line below the bars until the one before has ended.
 * Returns the scale for the rest of it.
 */
function queued(pen, turn, before, scale, y, colours, now) {
  const [left, right] = [Math.max(scale.left, scale.x(turn.start)), Math.min(scale.right, scale.x(Math.min(before, endOf(turn, now))))];
  if (right > left) {
    pen.fillStyle = colours.of(stageOf("queue").colour);
    pen.fillRect(left, y + BAR + 1, Math.max(LEAST, right - left), 2);
  }
  return { ...scale, left: Math.max(scale.left, Math.min(scale.x(before), scale.right)) };
}

function drawWait(pen, before, turn, scale, y, colours, now) {
  const end = endOf(before, now);
  if (turn.start <= end || end >= scale.to || turn.start <= scale.from) return;
  drawGap(pen, end, turn.start, scale, y, colours, turn.previous !== null && turn.previous === before.id ? "tools" : "other");
}

/** `kind`: tools, if the next turn continues the one before; other, if it does not; open, if there is none yet. */
function drawGap(pen, from, to, scale, y, colours, kind) {
  const [left, right] = [Math.max(scale.left, scale.x(from)), Math.min(scale.right, scale.x(to))];
  const room = right - left;
  if (room < 4) return;
  const middle = Math.round(y + BAR / 2) + 0.5;
  const length = to - from < 10_000 ? duration(to - from) : lasting((to - from) / 1000);
  const texts = [`client ${length}`, length];
  if (kind === "tools") texts.unshift(`client’s tools ${length}`);
  if (kind === "open") texts.unshift(`client, ${length} so far`);
  const text = texts.find((each) => widthOf(pen, each) + 22 <= room);
  pen.strokeStyle = colours.soft;
  pen.globalAlpha = 0.7;
  pen.setLineDash(kind === "tools" ? [4, 3] : [1, 4]);
  pen.beginPath();
  if (text === undefined) {
    line(pen, left + 2, right - 2, middle);
  } else {
    const half = widthOf(pen, text) / 2 + 4;
    const centre = (left + right) / 2;
    line(pen, left + 2, centre - half, middle);
    line(pen, centre + half, right - 2, middle);
    pen.fillStyle = colours.soft;
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    pen.fillText(text, centre, middle);
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function line(pen, from, to, y) {
  pen.moveTo(from, y);
  pen.lineTo(to, y);
}

function drawTurn(pen, turn, scale, y, colours, now, isSelected) {
  const end = endOf(turn, now);
  const left = scale.x(turn.start);
  const right = Math.max(scale.x(end), left + LEAST);
  const [shownLeft, shownRight] = [Math.max(left, scale.left), Math.min(right, scale.right)];
  if (shownRight <= shownLeft) return;
  const outcome = turn.end === null ? null : outcomeOf(turn.status);
  if (right - left < 3) {
    const { colour } = stageOf(longest(turn));
    pen.fillStyle = outcome?.isFailure ? colours.of(outcome.variable) : colour === null ? colours.soft : colours.of(colour);
    pen.fillRect(shownLeft, y, shownRight - shownLeft, BAR);
  } else {
    pen.save();
    pen.beginPath();
    pen.roundRect(shownLeft, y, shownRight - shownLeft, BAR, ROUND);
    pen.clip();
    let at = turn.start;
    const free = left + lettersWidth(pen, turn);
    for (const { name, start_ms, duration_ms } of turn.stages) {
      drawStage(pen, stageOf(name), turn.start + start_ms, turn.start + start_ms + duration_ms, scale, y, colours, free);
      at = Math.max(at, turn.start + start_ms + duration_ms);
    }
    if (turn.end === null) drawRunning(pen, turn, [at, end], scale, y, colours, free);
    pen.restore();
    if (turn.end === null) drawEdge(pen, end, scale, y, colours);
    if (outcome?.isFailure) {
      pen.fillStyle = colours.of(outcome.variable);
      pen.fillRect(shownLeft, y + BAR - 2, shownRight - shownLeft, 2);
    }
  }
  drawSigns(pen, turn, [left, right], scale, y, colours);
  if (isSelected) {
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.roundRect(shownLeft - 2.5, y - 2.5, shownRight - shownLeft + 5, BAR + 5, ROUND + 2);
    pen.stroke();
    pen.lineWidth = 1;
  }
}

function longest(turn) {
  let found = null;
  for (const stage of turn.stages) if (found === null || stage.duration_ms > found.duration_ms) found = stage;
  return found === null ? "decode" : found.name;
}

function drawStage(pen, stage, from, to, scale, y, colours, free) {
  const [left, right] = [Math.max(scale.x(from), scale.left), Math.min(scale.x(to), scale.right)];
  const width = right - left;
  if (width < 0.25) return;
  if (stage.colour === null) {
    pen.strokeStyle = colours.soft;
    pen.setLineDash([2, 2]);
    pen.strokeRect(left + 0.5, y + 0.5, Math.max(0.5, width - 1), BAR - 1);
    pen.setLineDash([]);
  } else {
    pen.fillStyle = colours.of(stage.colour);
    pen.fillRect(left, y, width, BAR);
    const pattern = width > 5 ? canvasPattern(pen, stage, colours.paper) : null;
    if (pattern !== null) {
      pen.fillStyle = pattern;
      pen.fillRect(left, y, width, BAR);
    }
  }
  const start = Math.max(left, free);
  if (right - start > 36) nameStage(pen, stage, (start + right) / 2, right - start, y, colours);
}

function nameStage(pen, stage, centre, room, y, colours) {
  const width = widthOf(pen, stage.name);
  if (width + 12 > room) return;
  const colour = stage.colour === null ? null : colours.of(stage.colour);
  if (colour !== null && stage.pattern !== "plain") {
    pen.fillStyle = colour;
    pen.fillRect(centre - width / 2 - 3, y, width + 6, BAR);
  }
  pen.fillStyle = colour === null ? colours.soft : inkOn(colour);
  pen.textAlign = "center";
  pen.fillText(stage.name, centre, y + BAR / 2 + 0.5);
}

/** The stage that goes on: paler than an ended one. */
function drawRunning(pen, turn, [from, to], scale, y, colours, free) {
  pen.globalAlpha = 0.72;
  drawStage(pen, stageOf(stageInPhase(turn.phase, turn.stages)), from, to, scale, y, colours, free);
  pen.globalAlpha = 1;
}

/** The end of a bar that grows. */
function drawEdge(pen, end, scale, y, colours) {
  const edge = scale.x(end);
  if (edge > scale.right + 1) return;
  pen.fillStyle = colours.ink;
  pen.fillRect(edge - 2, y - 2, 2, BAR + 4);
}

function lettersOf({ marks }) {
  if (!marks?.length) return "";
  return marks.map((mark) => LETTERS[mark] ?? "").join("");
}

function lettersWidth(pen, turn) {
  const letters = lettersOf(turn);
  return letters ? widthOf(pen, letters) + 4 : 0;
}

const widths = new Map();

/** The width of a text. They are remembered, because measuring costs more than drawing. */
function widthOf(pen, text) {
  let width = widths.get(text);
  if (width === undefined) {
    width = pen.measureText(text).width;
    if (widths.size > 5000) widths.clear();
    widths.set(text, width);
  }
  return width;
}

/** A letter for each mark at the beginning of a bar, and at its end the sign of how the turn ended. */
function drawSigns(pen, turn, [left, right], scale, y, colours) {
  const letters = lettersOf(turn);
  if (letters && left >= scale.left) {
    const width = widthOf(pen, letters) + 4;
    if (right - left >= width + 4) {
      pen.fillStyle = colours.paper;
      pen.beginPath();
      pen.roundRect(left + 1, y + 1, width, BAR - 2, ROUND - 1);
      pen.fill();
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      pen.fillText(letters, left + 3, y + BAR / 2 + 0.5);
    } else {
      pen.fillStyle = colours.ink;
      pen.fillRect(left, y - 3, Math.min(4, right - left), 2);
    }
  }
  const outcome = turn.end === null ? null : outcomeOf(turn.status);
  if (outcome?.sign && right <= scale.right + 1) drawSign(pen, outcome, right, y + BAR / 2, colours);
}

const strokes = new Map(Object.entries(SIGNS).map(([name, path]) => [name, typeof Path2D === "undefined" ? null : new Path2D(path)]));

/** A disc in the colour of the outcome, with its sign. A failure is filled, anything else has an edge only. */
function drawSign(pen, { sign, variable, isFailure }, x, y, colours) {
  const colour = colours.of(variable);
  pen.save();
  pen.translate(x, y);
  pen.beginPath();
  pen.arc(0, 0, SIGN, 0, 2 * Math.PI);
  pen.fillStyle = isFailure ? colour : colours.paper;
  pen.fill();
  pen.lineWidth = 1.5;
  pen.strokeStyle = isFailure ? colours.paper : colour;
  pen.stroke();
  pen.scale(0.82, 0.82);
  pen.lineWidth = 2;
  pen.stroke(strokes.get(sign));
  pen.restore();
}

/** The turn at a coordinate, or the nearest within a few pixels; null if there is none. */
export function turnAt(turns, x, scale, now) {
  let [found, nearest] = [null, 5];
  for (let index = turns.length - 1; index >= 0; index -= 1) {
    const turn = turns[index];
    const [left, right] = [scale.x(turn.start), scale.x(endOf(turn, now))];
    const distance = x < left ? left - x : x > right ? x - right : 0;
    if (distance < nearest) [found, nearest] = [turn, distance];
    if (right < scale.left) break;
  }
  return found;
}
