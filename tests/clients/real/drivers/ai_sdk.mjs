// Vercel's AI SDK, driven: node ai_sdk.mjs SCENARIO. It validates every event strictly. Prints one line of JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const model = openai.responses(process.env.OPENAI_MODEL);
let calls = 0;
const tools = {
  get_weather: tool({
    description: "Weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}, asked ${++calls} times`,
  }),
};

/** Read a stream to its end; what cannot be validated comes as a part of type error. */
async function read(result) {
  const errors = [];
  let text = "";
  let reasoning = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") errors.push(String(part.error?.message ?? part.error));
    if (part.type === "text-delta") text += part.text;
    if (part.type === "reasoning-delta") reasoning += part.text;
  }
  return { text, reasoning, errors, calls, finish: await result.finishReason.catch(() => null) };
}

const scenarios = {
  tools: () => read(streamText({ model, tools, stopWhen: stepCountIs(5), prompt: "weather in Paris?" })),
  plain: async () => {
    const { text } = await generateText({ model, tools, stopWhen: stepCountIs(5), prompt: "weather in Paris?" });
    return { text, calls };
  },
  chained: async () => {
    const first = await generateText({ model, prompt: "hello" });
    const { responseId } = first.providerMetadata.openai;
    const result = streamText({
      model,
      prompt: "and again",
      providerOptions: { openai: { previousResponseId: responseId } },
    });
    return { first: responseId, ...(await read(result)) };
  },
  object: async () => {
    const schema = z.object({ city: z.string(), degrees: z.number() });
    const { object } = await generateObject({ model, schema, prompt: "the weather" });
    return { object };
  },
  short: () => read(streamText({ model, prompt: "Hello!", maxOutputTokens: 12 })),
  retrying: () => read(streamText({ model, prompt: "Hello!", onError: () => {} })),
  failing: () => read(streamText({ model, prompt: "Hello!", maxRetries: 0, onError: () => {} })),
};

console.log(JSON.stringify(await scenarios[process.argv[2]]()));
