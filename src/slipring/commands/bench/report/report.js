// SPDX-License-Identifier: Apache-2.0
/** Draws the charts of a report whose figures are written beside them as JSON. */

import { h, made, patch } from "./dom.js";
import { patch12, stackedBars } from "./drawings.js";
import { lineChart, swatch } from "./lines.js";
import { stageOf } from "./stages.js";
import { BAR, drawLane, drawTimes, fitCanvas, inks, timeScale, turnAt } from "./timeline.js";
import { duration } from "./units.js";
import { waterfall } from "./waterfall.js";

const WIDTH = 420;
const PITCH = 40;
const AXIS = 20;

for (const figure of document.querySelectorAll("figure.lines")) drawLines(figure, dataOf(figure));
for (const figure of document.querySelectorAll("figure.stages")) drawStages(figure, dataOf(figure));
for (const figure of document.querySelectorAll("figure.timeline")) drawTimeline(figure, dataOf(figure));
for (const sign of document.querySelectorAll(".sign")) patch(sign, swatch(JSON.parse(sign.dataset.style)));

function dataOf(figure) {
  return JSON.parse(figure.querySelector("script").textContent);
}

/** A figure of each mode by turn, as lines. */
function drawLines(figure, chart) {
  patch(figure.querySelector(".drawn"), lineChart(chart));
  patch(figure.querySelector(".legend"), chart.series.map(({ name, style }) => h("li", null, swatch(style), name)));
}

/** The mean turn of each mode as a stacked bar. */
function drawStages(figure, { id, title, bars }) {
  const looks = bars.map((bar) => ({ ...bar, segments: bar.segments.map((one) => ({ ...stageOf(one.name), ...one })) }));
  patch(figure.querySelector(".drawn"), stackedBars({ id, title, width: WIDTH, bars: looks }));
  legend(figure, id, looks.flatMap(({ segments }) => segments));
}

function legend(figure, id, segments) {
  const stages = [...new Map(segments.map(({ name }) => [name, stageOf(name)])).values()].sort((a, b) => a.order - b.order);
  patch(figure.querySelector(".legend"), stages.map((stage, at) => h("li", null, patch12(`${id}-legend${at}`, stage), stage.name)));
}

/** One loop of each mode, turn by turn, and below it the chosen turn as a waterfall. */
function drawTimeline(figure, { id, modes }) {
  const lanes = modes.map(({ name, turns }) => ({ name, turns: laidOut(turns) }));
  const longest = Math.max(...lanes.map(({ turns }) => turns[turns.length - 1].end));
  const height = AXIS + PITCH * lanes.length;
  const canvas = made(h("canvas", { role: "img", "aria-label": aboutLanes(lanes) }));
  const mode = made(h("select", { id: `${id}-mode` }, lanes.map(({ name }, at) => h("option", { value: at }, name))));
  const number = made(h("input", { id: `${id}-turn`, type: "number", min: 1, max: lanes[0].turns.length, value: "1" }));
  const chosen = made(h("div", { class: "chosen" }));
  const box = figure.querySelector(".drawn");
  const controls = made(h("p", { class: "choice" }));
  controls.append(made(h("label", { for: `${id}-turn` }, "Turn ")), number, made(h("label", { for: `${id}-mode` }, " of ")), mode);
  box.append(canvas, controls, chosen);

  const current = () => {
    const { turns } = lanes[Number(mode.value)];
    return turns[Math.min(Math.max(1, Number(number.value) || 1), turns.length) - 1];
  };
  const scaled = () => timeScale(0, longest, 1, canvas.clientWidth - 1);
  const draw = () => {
    const width = box.clientWidth;
    const pen = fitCanvas(canvas, width, height);
    if (pen === null) return;
    const [scale, colours] = [timeScale(0, longest, 1, width - 1), inks(document.documentElement)];
    drawTimes(pen, scale, colours, { origin: 0, labelY: 8, top: 16, bottom: height });
    lanes.forEach(({ name, turns }, at) => {
      const y = AXIS + at * PITCH;
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      pen.fillText(name, 1, y + 9);
      drawLane(pen, turns, scale, y + 18, colours, { now: longest, hasWaits: false, isOpen: false, selected: current() });
    });
  };
  const choose = () => {
    const turn = current();
    number.max = lanes[Number(mode.value)].turns.length;
    const title = `Turn ${turn.number}, ${lanes[Number(mode.value)].name}: ${duration(turn.end - turn.start)}`;
    patch(chosen, h("h5", null, title),
      waterfall({ id: `${id}-waterfall`, title, stages: turn.stages, total_ms: turn.end - turn.start, running: null, width: WIDTH }));
    draw();
  };
  canvas.addEventListener("click", (event) => {
    const at = Math.min(lanes.length - 1, Math.max(0, Math.floor((event.offsetY - AXIS) / PITCH)));
    const turn = turnAt(lanes[at].turns, event.offsetX, scaled(), longest);
    if (turn === null) return;
    [mode.value, number.value] = [String(at), String(turn.number)];
    choose();
  });
  for (const control of [mode, number]) control.addEventListener("input", choose);
  new ResizeObserver(draw).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  for (const event of ["beforeprint", "afterprint"]) addEventListener(event, draw);
  legend(figure, id, lanes.flatMap(({ turns }) => turns.flatMap(({ stages }) => stages)));
  choose();
}

/** Turns one after the other, each with its stages one after the other. */
function laidOut(turns) {
  let at = 0;
  return turns.map(({ number, total_ms, stages }) => {
    let start_ms = 0;
    const laid = stages.map(([name, duration_ms]) => {
      const stage = { name, start_ms, duration_ms };
      start_ms += duration_ms;
      return stage;
    });
    const turn = { number, start: at, end: at + total_ms, stages: laid, phase: null, status: "completed", id: null, previous: null };
    at = turn.end;
    return turn;
  });
}

function aboutLanes(lanes) {
  const texts = lanes.map(({ name, turns }) => `${name}: ${turns.length} turns in ${duration(turns[turns.length - 1].end)}`);
  return `One loop of each mode, turn by turn. ${texts.join("; ")}.`;
}
