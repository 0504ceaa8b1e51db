// SPDX-License-Identifier: Apache-2.0
/**
 * The stages of a turn: their order, patterns, meanings, and who takes the time. The only definition of these:
 * the live page and the report of `slipring bench` draw with it. Their colours are in stages.css, and stages that
 * often lie side by side differ in pattern too, so that colour vision is not needed.
 */

const STAGES = [
  ["decode", "server", "plain", "the request is decoded"],
  ["queue", "waiting", "dots", "waits for earlier turns of its lane"],
  ["resolve", "server", "rising", "the parent is looked up, in memory or in the store"],
  ["validate", "server", "plain", "new items are validated, new grammars compiled"],
  ["weigh", "server", "falling", "the engine counts the context"],
  ["compact", "model", "crossed", "the context is summarised"],
  ["check", "checks", "crossed", "the input is inspected before the engine gets it"],
  ["render", "server", "rising", "the new tokens are rendered"],
  ["engine_queue", "waiting", "dots", "waits for a slot of the engine"],
  ["prefill", "model", "falling", "the engine reads the new tokens"],
  ["held", "checks", "dots", "the answer waits for the checks of the input"],
  ["generate", "model", "plain", "the engine generates"],
  ["list", "tools", "falling", "MCP servers list their tools"],
  ["tools", "tools", "crossed", "hosted tools run"],
  ["client", "client", "open", "waits for the client's tools"],
  ["rollout", "model", "lines", "earlier steps of a rollout"],
  ["store", "server", "lines", "the response is committed"],
  ["terminal", "server", "plain", "the terminal event is encoded"],
];
/** What reports show beside stages, with the names of their colours. */
const OTHERS = [
  ["other stages", "server", "plain", "stages too short to be shown", "other"],
  ["outside the server", "client", "plain", "network and client", "outside"],
];
/** Who takes the time of a turn, each with the stage whose look stands for all of theirs. */
const TAKERS = {
  model: ["generate", "the model reads and generates"],
  waiting: ["engine_queue", "the turn waits for its lane or for the engine"],
  server: ["resolve", "slipring's own work"],
  tools: ["tools", "hosted tools run"],
  checks: ["check", "safety checks hold the turn up"],
  client: ["client", "the client's tools run"],
};

/** The stage that a turn is in, by the phase that it reports while it runs. */
const PHASES = {
  waiting: "engine_queue",
  loading: "resolve",
  resolving: "validate",
  listing: "list",
  checking: "validate",
  inspecting: "check",
  claiming: "validate",
  preparing: "render",
  running: "generate",
  calling: "tools",
  paused: "client",
  saving: "store",
};

const known = new Map(
  [...STAGES, ...OTHERS].map(([name, taker, pattern, meaning, colour = name], order) => [
    name,
    { name, taker, pattern, meaning, order, colour: pattern === "open" ? null : colourOf(colour) },
  ]),
);

/** The CSS variable of a stage's colour, as a value. */
function colourOf(name) {
  return `var(--stage-${name.replaceAll("_", "-")})`;
}

/** A stage by its name. */
export function stageOf(name) {
  return known.get(name) ?? { name, taker: "server", pattern: "crossed", meaning: "", order: known.size, colour: colourOf("other") };
}

/** Those who take the time of turns: [{name, meaning, stage}]. */
export function allTakers() {
  return Object.entries(TAKERS).map(([name, [stage, meaning]]) => ({ name, meaning, stage: stageOf(stage) }));
}

/** The stages that are defined, in their order. */
export function allStages() {
  return STAGES.map(([name]) => known.get(name));
}

/** The stage that a turn which has not ended is in, from its phase and the stages behind it. */
export function stageInPhase(phase, stages) {
  const last = stages.length ? stages[stages.length - 1].name : "";
  if (phase === "waiting" && last !== "render") return "queue";
  if (phase === "running" && last !== "prefill") return last === "engine_queue" ? "prefill" : "generate";
  return PHASES[phase] ?? "generate";
}

/** Black or white, whichever has more contrast on this colour. */
export function inkOn(colour) {
  return luminance(colour) > 0.18 ? "#000" : "#fff";
}

/** Relative luminance of #rrggbb, as defined by WCAG. */
function luminance(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const share = parseInt(colour.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
