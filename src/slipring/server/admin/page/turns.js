// SPDX-License-Identifier: Apache-2.0
/** Turns as the page keeps them, made from the stream's or a recording's, and what they are in words. */

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
export function turnOf({ started_at, report, transport, tenant, connection, lane }, process, isRunning) {
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
