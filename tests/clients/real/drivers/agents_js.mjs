// @openai/agents, driven: node agents_js.mjs SCENARIO websocket|http [URL OF AN MCP SERVER, or FILES]. Prints one line of
// JSON.
import { readFileSync } from "node:fs";

import {
  Agent,
  OpenAIProvider,
  Runner,
  hostedMcpTool,
  setTracingDisabled,
  tool,
  withResponsesWebSocketSession,
} from "@openai/agents";
import { z } from "zod";

setTracingDisabled(true); // else it tries to send traces to OpenAI
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
let calls = 0;
const weather = tool({
  name: "get_weather",
  description: "Weather of a city",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}, asked ${++calls} times`,
});
const agent = new Agent({ name: "weather", model, instructions: "Use the tool.", tools: [weather] });
const talker = new Agent({ name: "talker", model, modelSettings: { maxTokens: 200, temperature: 0 } });

async function running(useResponsesWebSocket, work) {
  const provider = new OpenAIProvider({ baseURL, apiKey, useResponses: true, useResponsesWebSocket });
  try {
    return await work(new Runner({ modelProvider: provider }));
  } finally {
    await provider.close();
  }
}

const [name, transport, ...given] = process.argv.slice(2);
const [serverUrl] = given;
const dataUrl = (path) => `data:image/png;base64,${readFileSync(path).toString("base64")}`;

/** Runs an agent with the tools of an MCP server, which slipring runs; `approve`: what to decide, if it is asked. */
const hosted = (socket, approve, options = {}) =>
  running(socket, async (runner) => {
    const asked = [];
    const onApproval = async (_, { rawItem }) => {
      asked.push([rawItem.providerData.name, rawItem.providerData.arguments]);
      return { approve, reason: approve ? undefined : "too expensive" };
    };
    const approval = approve === undefined ? { requireApproval: "never" } : { requireApproval: "always", onApproval };
    const tools = [hostedMcpTool({ serverLabel: "fake", serverUrl, ...approval })];
    const result = await runner.run(new Agent({ name: "sums", model, tools }), "1 + 2?", options);
    if (options.stream) {
      for await (const _ of result);
      await result.completed;
    }
    const outputs = result.newItems
      .filter((item) => item.rawItem?.type === "hosted_tool_call" && item.rawItem.output)
      .map((item) => item.rawItem.output);
    return { text: result.finalOutput, asked, outputs, responses: result.rawResponses.length };
  });

const scenarios = {
  history: (socket) =>
    running(socket, async (runner) => {
      const result = await runner.run(agent, "weather in Paris?");
      return { text: result.finalOutput, calls };
    }),

  streamed: (socket) =>
    running(socket, async (runner) => {
      const result = await runner.run(agent, "weather in Paris?", { stream: true });
      let text = "";
      for await (const event of result) {
        if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") {
          text += event.data.delta;
        }
      }
      await result.completed;
      return { text, final: result.finalOutput, calls };
    }),

  chained: () =>
    withResponsesWebSocketSession(
      async ({ run }) => {
        const first = await run(agent, "weather in Paris?");
        const second = await run(agent, "and tomorrow?", { previousResponseId: first.lastResponseId });
        return { texts: [first.finalOutput, second.finalOutput], first: first.lastResponseId, calls };
      },
      { providerOptions: { baseURL, apiKey } },
    ),

  talk: (socket) =>
    running(socket, async (runner) => {
      const result = await runner.run(talker, "Hello!");
      return { text: result.finalOutput };
    }),

  pictures: (socket) =>
    running(socket, async (runner) => {
      const look = tool({
        name: "look",
        description: "Look once more",
        parameters: z.object({}),
        execute: async () => ({ type: "image", image: dataUrl(given[1]) }),
      });
      const content = [
        { type: "input_text", text: "Is it the same?" },
        { type: "input_image", image: dataUrl(given[0]) },
      ];
      const viewer = new Agent({ name: "viewer", model, tools: [look] });
      return { text: (await runner.run(viewer, [{ role: "user", content }])).finalOutput };
    }),

  hosted: (socket) => hosted(socket),
  hostedStreamed: (socket) => hosted(socket, undefined, { stream: true }),
  approved: (socket) => hosted(socket, true),
  denied: (socket) => hosted(socket, false),
};

console.log(JSON.stringify(await scenarios[name](transport !== "http")));
