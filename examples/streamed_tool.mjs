// An agent whose tool runs commands and sends what they print while they run.
//
// The server prefills the output as it arrives. When the command has ended, only the rest is left to read.
// Start a server (`make run`), then, with Node 22 or newer: npm install openai ws; node examples/streamed_tool.mjs
import { spawn } from "node:child_process";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const model = process.env.OPENAI_MODEL ?? "smollm2-135m-instruct";
const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "any",
});
const MAX_STEPS = 8;
const MOST_CHARS = 16_384;
const TIMEOUT_MS = 60_000;
const CHECKS = `
for (let number = 0; number < 20; number++)
  setTimeout(() => console.log("check " + number + ": the parser reads line " + number * 37), number * 50);
`;
// The only commands that the model can run: it chooses one by its name.
const COMMANDS = {
  checks: [process.execPath, "-e", CHECKS], // stands for your own test suite
  list_files: ["ls", "-l"],
};
const tools = [
  {
    type: "function",
    name: "shell",
    description: "Run a command and read what it prints.",
    parameters: {
      type: "object",
      properties: { command: { type: "string", enum: Object.keys(COMMANDS) } },
      required: ["command"],
      additionalProperties: false,
    },
    strict: true,
  },
];

/** Run a command, report each piece of its output, and return all of it. Ends it at the limits. */
async function run(command, report) {
  const [program, ...args] = COMMANDS[command];
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"], timeout: TIMEOUT_MS });
  const ended = new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => resolve(code ?? signal));
  });
  let output = "";
  child.stdout.setEncoding("utf8");
  child.stdout.on("data", (text) => {
    const piece = text.slice(0, MOST_CHARS - output.length).toWellFormed(); // not half of a surrogate pair
    if (piece) report(piece);
    output += piece;
    if (output.length === MOST_CHARS) child.kill(); // it prints too much
  });
  const status = await ended;
  return `${output}\nexit code ${status}`;
}

/** Run the command of a call while its output is streamed; return the finished output. */
async function answer(ws, response_id, { call_id, arguments: json }) {
  const output = await run(JSON.parse(json).command, (delta) => {
    process.stdout.write(delta);
    ws.send({ type: "response.tool_output.delta", response_id, call_id, delta });
  });
  ws.send({ type: "response.tool_output.done", response_id, call_id }); // before the next call of the response
  return { type: "function_call_output", call_id, output };
}

/** Create a response and wait for its end. */
async function step(ws, events, fields) {
  ws.send({ type: "response.create", model, tools, max_output_tokens: 80, store: false, ...fields });
  for (;;) {
    const { value, done } = await events.next();
    if (done || value.type === "close") throw new Error("the server closed the connection");
    if (value.type === "error") throw value.error;
    const type = value.message?.type;
    if (type === "response.failed") throw new Error(JSON.stringify(value.message));
    if (type === "response.completed" || type === "response.incomplete") return value.message.response;
  }
}

const ws = new ResponsesWS(client, { headers: { "OpenAI-Beta": "slipring_tool_output=v1" } });
const events = ws.stream();
try {
  let response = await step(ws, events, { input: "Do the checks pass?", tool_choice: "required" });
  for (let steps = 0; steps < MAX_STEPS; steps++) {
    const calls = response.output.filter(
      (item) => item.type === "function_call" && item.status === "completed", // not one cut at the limit
    );
    if (!calls.length) break;
    const input = [];
    for (const call of calls) input.push(await answer(ws, response.id, call));
    response = await step(ws, events, { input, previous_response_id: response.id });
    const { input_tokens: read, input_tokens_details: details } = response.usage;
    console.log(`\n${read - details.cached_tokens} of ${read} tokens were left to read`);
  }
  for (const item of response.output)
    if (item.type === "message") console.log(item.content.map((part) => part.text).join(""));
} finally {
  ws.close();
}
