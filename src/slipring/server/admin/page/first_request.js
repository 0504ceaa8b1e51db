// SPDX-License-Identifier: Apache-2.0
/** What an empty server shows: how to make the first request. */

import { copyButton } from "./copying.js";
import { h } from "./dom.js";

export function firstRequest(state) {
  const url = state.greeting?.api_url ?? "http://127.0.0.1:8000/v1";
  const models = state.workers.flatMap(({ engines }) => engines.flatMap((engine) => engine.models));
  const model = models[0] ?? "MODEL";
  const needsKey = state.workers.some(({ needs_key }) => needs_key);
  const key = needsKey ? "YOUR_KEY" : "any";
  return [
    h("h2", null, "No client has connected yet"),
    h("p", null, "The server is ready. Make a first request, and it appears here:"),
    sample("With curl, over HTTP", curl(url, model, key)),
    sample("With Python, over one WebSocket", python(url, model, key), "pip install 'openai[realtime]'"),
    h("p", { class: "note" }, needsKey
      ? ["This server needs an API key: put yours in place of ", h("code", null, "YOUR_KEY"), "."]
      : "This server has no API keys: it accepts any."),
  ];
}

function sample(title, text, note) {
  return h("figure", { key: title },
    h("figcaption", null, h("span", null, title, note && h("small", null, ` (${note})`)),
      copyButton(text, title)),
    h("pre", { tabindex: "0", "aria-label": title }, h("code", null, text)));
}

function curl(url, model, key) {
  const body = JSON.stringify({ model, input: "Hello!", max_output_tokens: 40 });
  return [`curl ${shellQuoted(`${url}/responses`)} \\`, `  -H 'Authorization: Bearer ${key}' \\`, "  -H 'Content-Type: application/json' \\",
    `  -d ${shellQuoted(body)}`].join("\n");
}

function shellQuoted(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function python(url, model, key) {
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(url)}, api_key="${key}")`,
    "with client.responses.connect() as connection:",
    `    connection.response.create(model=${JSON.stringify(model)}, input="Hello!", max_output_tokens=40)`,
    '    first = next(e.response for e in connection if "complete" in e.type)',
    '    connection.response.create(input="Go on.", max_output_tokens=40, previous_response_id=first.id)',
    '    print(next(e.response for e in connection if "complete" in e.type).output_text)',
  ].join("\n");
}
