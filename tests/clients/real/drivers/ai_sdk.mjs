// Vercel's AI SDK, driven: node ai_sdk.mjs SCENARIO [URL OF AN MCP SERVER]. It validates every event strictly. AI_SDK_API
// names the provider: responses, chat, compatible or messages. Prints one line of JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const server = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
const openai = createOpenAI(server);
const providers = {
  responses: openai.responses,
  chat: openai.chat,
  compatible: createOpenAICompatible({ name: "slipring", supportsStructuredOutputs: true, includeUsage: true, ...server }),
  messages: createAnthropic(server),
};
const model = providers[process.env.AI_SDK_API ?? "responses"](process.env.OPENAI_MODEL);
const [scenario, serverUrl] = process.argv.slice(2);
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
  const results = [];
  let text = "";
  let reasoning = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") errors.push(String(part.error?.message ?? part.error));
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-result" && part.providerExecuted) results.push(part.output.output ?? part.output);
    if (part.type === "reasoning-delta") reasoning += part.text;
  }
  const finish = await result.finishReason.catch(() => null);
  const usage = await result.totalUsage.catch(() => null);
  return { text, reasoning, errors, calls, results, finish, usage };
}

/** Options of Anthropic's provider with which the model thinks. */
const thinking = { anthropic: { thinking: { type: "enabled", budgetTokens: 2048 } } };

/** An image of one pixel. */
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==";

/** Ask for an object of a schema, with these options of the provider. */
async function describe(providerOptions) {
  const schema = z.object({ city: z.string(), degrees: z.number() });
  const { object } = await generateObject({ model, schema, prompt: "the weather", providerOptions });
  return { object };
}

/** Run a tool loop, then ask again after all that was said. */
async function followUp() {
  const question = { role: "user", content: "weather in Paris?" };
  const asked = { model, tools, stopWhen: stepCountIs(5), providerOptions: thinking };
  const first = await generateText({ ...asked, messages: [question] });
  const messages = [question, ...first.responseMessages, { role: "user", content: "And tomorrow?" }];
  return { first: first.text, ...(await read(streamText({ ...asked, messages }))) };
}

/** The tools of an MCP server, which slipring runs. */
const hosted = (requireApproval) => ({
  mcp: openai.tools.mcp({ serverLabel: "fake", serverUrl, requireApproval }),
});

/** Tools that slipring maps onto tools of MCP servers. */
const builtin = {
  web_search: openai.tools.webSearch({}),
  file_search: openai.tools.fileSearch({ vectorStoreIds: ["vs_1"] }),
  code_interpreter: openai.tools.codeInterpreter({}),
};
// It asks for sources and outputs by itself.
const providerOptions = { openai: { include: ["file_search_call.results"] } };

/** A tool whose calls are no function calls. */
const own = { notes: openai.tools.customTool({ description: "Writes a note", format: { type: "text" } }) };

/** The results of hosted calls in an answer that is not streamed. */
const resultsOf = ({ content }) =>
  content.filter((part) => part.type === "tool-result").map(({ output }) => output.output ?? output);

/** Ask, answer the approval request, and read what follows. */
async function decide(approved) {
  const tools = hosted("always");
  const question = { role: "user", content: "1 + 2?" };
  const first = await generateText({ model, tools, messages: [question] });
  const requests = first.content.filter((part) => part.type === "tool-approval-request");
  const content = requests.map(({ approvalId }) => ({
    type: "tool-approval-response",
    approvalId,
    approved,
    providerExecuted: true,
  }));
  const messages = [question, ...first.response.messages, { role: "tool", content }];
  return { asked: requests.length, ...(await read(streamText({ model, tools, messages }))) };
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
  object: () => describe(),
  object_by_format: () => describe({ anthropic: { structuredOutputMode: "outputFormat" } }),
  thinking: () =>
    read(streamText({ model, tools, stopWhen: stepCountIs(5), providerOptions: thinking, prompt: "weather in Paris?" })),
  follow_up: followUp,
  image: () =>
    read(
      streamText({
        model,
        messages: [
          {
            role: "user",
            content: [
              { type: "text", text: "What is it?" },
              { type: "image", image: pixel, mediaType: "image/png" },
            ],
          },
        ],
      }),
    ),
  short: () => read(streamText({ model, prompt: "Hello!", maxOutputTokens: 12 })),
  retrying: () => read(streamText({ model, prompt: "Hello!", onError: () => {} })),
  failing: () => read(streamText({ model, prompt: "Hello!", maxRetries: 0, onError: () => {} })),
  listed: async () => {
    const result = await generateText({ model, tools: hosted("never"), prompt: "1 + 2?" });
    return { text: result.text, results: resultsOf(result) };
  },
  builtin: () => read(streamText({ model, tools: builtin, providerOptions, prompt: "look" })),
  builtin_plain: async () => {
    const result = await generateText({ model, tools: builtin, providerOptions, prompt: "look" });
    return { text: result.text, results: resultsOf(result) };
  },
  own: async () => {
    const result = streamText({ model, tools: own, prompt: "go" });
    const seen = await read(result);
    return { ...seen, inputs: (await result.toolCalls).map(({ toolName, input }) => [toolName, input]) };
  },
  own_plain: async () => {
    const { toolCalls } = await generateText({ model, tools: own, prompt: "go" });
    return { inputs: toolCalls.map(({ toolName, input }) => [toolName, input]) };
  },
  hosted: () => read(streamText({ model, tools: hosted("never"), prompt: "1 + 2?" })),
  approved: () => decide(true),
  denied: () => decide(false),
};

console.log(JSON.stringify(await scenarios[scenario]()));
