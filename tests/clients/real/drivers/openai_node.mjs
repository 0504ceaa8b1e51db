// openai-node's WebSocket, driven: node openai_node.mjs SCENARIO [FILES]. Prints one line of JSON.
import { readFileSync } from "node:fs";

import OpenAI from "openai";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const model = process.env.OPENAI_MODEL;
const client = new OpenAI(); // OPENAI_BASE_URL and OPENAI_API_KEY say the rest
const tools = [
  {
    type: "function",
    name: "get_weather",
    description: "Weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
    strict: true,
  },
];
const dataUrl = (path) => `data:image/png;base64,${readFileSync(path).toString("base64")}`;
const ENDS = ["response.completed", "response.failed", "response.incomplete"];

/** Send creates and read each of them to its end; a bare error is an end too. */
function turns(ws) {
  const events = ws.stream();
  return async (request) => {
    ws.send({ type: "response.create", model, store: false, ...request });
    let text = "";
    for (;;) {
      const { value, done } = await events.next();
      if (done || value.type === "close") throw new Error("the socket was closed");
      if (value.type === "error") return { error: value.error.error, text };
      if (value.type !== "message") continue;
      if (value.message.type === "response.output_text.delta") text += value.message.delta;
      if (ENDS.includes(value.message.type)) return { ...value.message, text };
    }
  };
}

const scenarios = {
  async tools(ws) {
    const turn = turns(ws);
    let { response, text } = await turn({ input: "weather in Paris?", tools });
    let calls = 0;
    for (;;) {
      const asked = response.output.filter((item) => item.type === "function_call");
      if (!asked.length) return { calls, text };
      calls += asked.length;
      const input = asked.map(({ call_id, arguments: json }) => ({
        type: "function_call_output",
        call_id,
        output: `sunny in ${JSON.parse(json).city}`,
      }));
      ({ response, text } = await turn({ input, tools, previous_response_id: response.id }));
    }
  },

  async warmup(ws) {
    const turn = turns(ws);
    const warmed = await turn({ input: "Be brief.", tools, generate: false });
    const { text } = await turn({ input: "hello", tools, previous_response_id: warmed.response.id });
    return { warmed: warmed.response.output, text };
  },

  // The helper of the package: one reader, a consumer for each lane.
  async lanes(ws) {
    for await (const event of ws.stream()) if (event.type === "open") break; // it does not wait by itself
    const session = new ResponsesWebSocketSession(ws, {
      maxLanes: 8,
      maxBufferedEvents: 512,
      maxBufferedBytes: 1 << 24,
    });
    const [main, happy, sad] = ["main", "happy", "sad"].map((name) => session.lane(name));
    main.create({ model, input: "Begin a story.", store: false });
    const parent = await main.finalResponse();
    const fork = { model, previous_response_id: parent.id, store: false };
    happy.create({ ...fork, input: "End it well." });
    sad.create({ ...fork, input: "End it badly." });
    const endings = await Promise.all([happy.finalResponse(), sad.finalResponse()]);
    session.close();
    return {
      parent: parent.id,
      parents: endings.map((response) => response.previous_response_id),
      texts: endings.map((response) => response.output_text),
    };
  },

  async error(ws) {
    const turn = turns(ws);
    const { error } = await turn({ input: "hello", previous_response_id: "resp_unknown" });
    const { text } = await turn({ input: "hello" });
    return { error, text };
  },

  async pictures(ws) {
    const [sent, returned] = process.argv.slice(3).map(dataUrl);
    const turn = turns(ws);
    const look = { ...tools[0], name: "look", parameters: { ...tools[0].parameters, properties: {}, required: [] } };
    const content = [
      { type: "input_text", text: "Is it the same?" },
      { type: "input_image", image_url: sent, detail: "auto" },
    ];
    const first = await turn({ input: [{ role: "user", content }], tools: [look] });
    const { call_id } = first.response.output.find((item) => item.type === "function_call");
    const output = [{ type: "input_image", image_url: returned }];
    const { text } = await turn({
      input: [{ type: "function_call_output", call_id, output }],
      tools: [look],
      previous_response_id: first.response.id,
    });
    return { text };
  },

  async talk(ws) {
    const turn = turns(ws);
    const first = await turn({ input: "Hello!", max_output_tokens: 12 });
    const second = await turn({
      input: "Go on.",
      max_output_tokens: 12,
      previous_response_id: first.response.id,
    });
    return { texts: [first.text, second.text], usage: second.response.usage };
  },
};

async function overHttp() {
  const first = await client.responses.create({ model, input: "hello" });
  let text = "";
  const stream = await client.responses.create({
    model,
    input: "and again",
    previous_response_id: first.id,
    stream: true,
  });
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  return { texts: [first.output_text, text] };
}

async function overSocket(scenario) {
  const ws = new ResponsesWS(client);
  try {
    return await scenario(ws);
  } finally {
    ws.close();
  }
}

const name = process.argv[2];
console.log(JSON.stringify(await (name === "http" ? overHttp() : overSocket(scenarios[name]))));
