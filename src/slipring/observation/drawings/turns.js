// SPDX-License-Identifier: Apache-2.0
/** Turns as the page keeps them, made from the stream's or a recording's, and what they are in words. */

import { h } from "./dom.js";
import { stageInPhase, stageOf } from "./stages.js";
import { count, counted, duration, percent, shortId, size } from "./units.js";

export const MARKS = {
  fork: "fork: continues a response of another lane",
  warmup: "warmup: generates nothing",
  steered: "steered: started by a steer",
  compaction: "compaction: the context was summarised",
  rollout: "rollout: ran several steps",
  background: "background: ran without a connection",
};

/** A turn of the stream. */
export function turnOf({ started_at, report, transport, tenant, connection, lane, api }, process, isRunning) {
  const start = started_at * 1000;
  return {
    start,
    end: isRunning ? null : start + report.total_ms,
    stages: report.stages,
    phase: isRunning ? report.status : null,
    status: report.status,
    marks: report.marks,
    id: report.response_id ?? null,
    previous: report.previous_response_id ?? null,
    process,
    connection: connection ?? 0,
    lane: lane ?? null,
    transport,
    api: api ?? "responses",
    tenant,
    report,
  };
}

/** Identifies a turn while it runs and after it has ended. */
export function roundedKey(turn) {
  return `${turn.process}/${turn.connection}/${turn.lane ?? ""}/${turn.transport}/${Math.round(turn.start)}`;
}

/** The bytes that were sent, and those of a request with the full history. */
export function bytesOf({ report }) {
  const sent = report.request_bytes;
  return { sent, full: sent + (report.history_bytes ?? 0) };
}

/** New, cached, rendered and generated tokens, or null while they are unknown. */
export function tokensOf({ report }) {
  const tokens = report.tokens;
  if (tokens === undefined || tokens === null) return null;
  return { ...tokens, reasoning: tokens.reasoning ?? 0, fresh: Math.max(0, tokens.input - tokens.cached) };
}

/** Milliseconds from the arrival of the request until the first token was sent; null if there was none. */
export function firstTokenOf({ stages }) {
  const first = stages.findIndex(({ name }, at) => name === "generate" && ["prefill", "held"].includes(stages[at - 1]?.name));
  return first === -1 ? null : stages[first - 1].start_ms + stages[first - 1].duration_ms;
}

/** One sentence for those who do not see the bar. */
export function inWords(turn, now) {
  const name = turn.id === null ? "Turn" : `Response ${shortId(turn.id)}`;
  if (turn.end === null) {
    const stage = stageOf(stageInPhase(turn.phase, turn.stages));
    return `${name}, ${turn.phase} for ${duration(now - turn.start)}: ${stage.meaning || stage.name}`;
  }
  const parts = [`${name}, ${turn.status}, ${duration(turn.end - turn.start)}`];
  const slowest = longestStage(turn);
  if (slowest !== null) parts.push(`longest: ${slowest.name} ${duration(slowest.duration_ms)}`);
  const tokens = tokensOf(turn);
  if (tokens !== null) parts.push(`${counted(tokens.fresh, "new token")}, ${count(tokens.cached)} cached`);
  const { sent, full } = bytesOf(turn);
  if (full > sent) parts.push(`${size(sent)} sent instead of ${size(full)}, ${percent(1 - sent / full)} less`);
  if (turn.report.hosted_calls) parts.push(counted(turn.report.hosted_calls, "hosted call"));
  if (turn.marks?.length) parts.push(turn.marks.join(", "));
  return parts.join("; ");
}

/** The stage that took longest, all its steps together: {name, duration_ms}; null if there is none. */
export function longestStage({ stages }) {
  const spent = new Map();
  for (const { name, duration_ms } of stages) spent.set(name, (spent.get(name) ?? 0) + duration_ms);
  let found = null;
  for (const [name, duration_ms] of spent) if (found === null || duration_ms > found.duration_ms) found = { name, duration_ms };
  return found;
}

/** How turns end: the colour, the sign at the end of a bar, and the meaning of each status. */

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
