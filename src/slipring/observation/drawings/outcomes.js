// SPDX-License-Identifier: Apache-2.0
/** How turns end: the colour, the sign at the end of a bar, and the meaning of each status. */

import { h } from "./dom.js";

const OUTCOMES = {
  completed: [null, "the answer is whole"],
  incomplete: ["cut", "the answer was cut short, by max_output_tokens for instance; it can be continued"],
  cancelled: ["stop", "the client cancelled it or went away"],
  failed: ["cross", "it failed after it had begun"],
  refused: ["cross", "the request was not accepted"],
};
/** Statuses that mean that something went wrong. */
const FAILURES = new Set(["failed", "refused"]);

/** {name, sign, meaning, isFailure, variable}: the variable is that of its colour. An unknown status looks like a completed turn. */
export function outcomeOf(status) {
  const [sign, meaning] = OUTCOMES[status] ?? [null, ""];
  const isFailure = FAILURES.has(status);
  return { name: status, sign, meaning, isFailure, variable: isFailure ? "--failed" : status in OUTCOMES ? `--${status}` : "--soft" };
}

/** Those that have a sign; of several that have the same one, one if `isShort`. */
export function markedOutcomes(isShort) {
  const marked = Object.keys(OUTCOMES).map(outcomeOf).filter(({ sign }) => sign !== null);
  return isShort ? marked.filter(({ sign }, at) => marked.findIndex((each) => each.sign === sign) === at) : marked;
}

/** The strokes of a sign in a square of 10 by 10 around 0. */
export const SIGNS = {
  cross: "M-3 -3L3 3M3 -3L-3 3",
  stop: "M-3 0H3",
  cut: "M-2.6 -3.4L2.6 0L-2.6 3.4",
};

/** The status of a turn, or the phase of one that runs, in its colour. */
export function statusBadge({ status, phase, end }) {
  if (end === null) return h("span", { class: "badge running" }, phase);
  return h("span", { class: `badge ${status}`, title: outcomeOf(status).meaning || null }, status);
}

/** The sign of an outcome, for a legend. */
export function signOf({ sign, variable, isFailure }) {
  const colour = `var(${variable})`;
  const [ground, ink] = isFailure ? [colour, "var(--paper)"] : ["var(--paper)", colour];
  return h("svg", { class: "patch", viewBox: "-7 -7 14 14", "aria-hidden": "true" },
    h("circle", { r: 6, fill: ground, stroke: colour, "stroke-width": 1.5 }),
    h("path", { d: SIGNS[sign], stroke: ink, fill: "none", "stroke-width": 1.8, transform: "scale(.82)" }));
}
