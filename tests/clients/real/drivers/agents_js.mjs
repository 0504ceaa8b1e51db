// @openai/agents, driven: node agents_js.mjs SCENARIO. Prints one line of JSON.
import {
  Agent,
  OpenAIProvider,
  Runner,
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
};

const [name, transport] = process.argv.slice(2);
console.log(JSON.stringify(await scenarios[name](transport !== "http")));
