// SPDX-License-Identifier: Apache-2.0
/**
 * The stages of a turn: their order, colours, patterns and meanings. The only definition of these: the live
 * page and the report of `slipring bench` draw with it. Colours differ in lightness as well as in hue, and
 * stages that often lie side by side differ in pattern too, so that colour vision is not needed.
 */

const STAGES = [
  ["decode", "#332288", "plain", "the request is decoded"],
  ["queue", "#ddcc77", "dots", "waits for earlier turns of its lane"],
  ["resolve", "#117733", "rising", "the parent is looked up, in memory or in the store"],
  ["validate", "#88ccee", "plain", "new items are validated, new grammars compiled"],
  ["weigh", "#999933", "falling", "the engine counts the context"],
  ["compact", "#661100", "crossed", "the context is summarised"],
  ["check", "#ee8866", "crossed", "the input is inspected before the engine gets it"],
  ["render", "#cc6677", "rising", "the new tokens are rendered"],
  ["engine_queue", "#44aa99", "dots", "waits for a slot of the engine"],
  ["prefill", "#aa4499", "falling", "the engine reads the new tokens"],
  ["held", "#ee99aa", "dots", "the answer waits for the checks of the input"],
  ["generate", "#b8bec6", "plain", "the engine generates"],
  ["list", "#bbcc33", "falling", "MCP servers list their tools"],
  ["tools", "#99ddff", "crossed", "hosted tools run"],
  ["client", null, "open", "waits for the client's tools"],
  ["rollout", "#7a828c", "lines", "earlier steps of a rollout"],
  ["store", "#6699cc", "lines", "the response is committed"],
  ["terminal", "#882255", "plain", "the terminal event is encoded"],
];
const UNKNOWN_COLOURS = [
  "#44aa99", "#cc6677", "#ddcc77", "#332288", "#88ccee", "#117733", "#aa4499", "#999933",
];
/** What reports show beside stages. */
const OTHERS = [
  ["other stages", "#4b5563", "plain", "stages too short to be shown"],
  ["outside the server", "#7a828c", "plain", "network and client"],
];

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
  [...STAGES, ...OTHERS].map(([name, colour, pattern, meaning], order) => [name, { name, colour, pattern, meaning, order }]),
);

/** A stage by its name; one that is not known here gets a colour of its own that does not change. */
export function stageOf(name) {
  let stage = known.get(name);
  if (stage === undefined) {
    const order = known.size;
    const colour = UNKNOWN_COLOURS[(order - STAGES.length - OTHERS.length) % UNKNOWN_COLOURS.length];
    stage = { name, colour, pattern: "crossed", meaning: "", order };
    if (order < 1000) known.set(name, stage);
  }
  return stage;
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
