// SPDX-License-Identifier: Apache-2.0
/** Descriptions of elements (see dom.js) as well-formed XML, for drawings that are files of their own. */

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** A coordinate, rounded to a tenth of a unit. Throws if it cannot be drawn. */
export function rounded(value) {
  if (!Number.isFinite(value)) throw new RangeError(`${value} cannot be drawn`);
  return String(Number(value.toFixed(1)));
}

/** An element as text. Every text in it is escaped; a stylesheet has nothing that would have to be. */
export function written({ tag, properties, children }) {
  const attributes = Object.entries(properties).map(([name, value]) => attribute(name, value)).join("");
  const inner = children.map((child) => (typeof child === "object" ? written(child) : textIn(tag, String(child)))).join("");
  return inner ? `<${tag}${attributes}>${inner}</${tag}>` : `<${tag}${attributes}/>`;
}

function attribute(name, value) {
  if (value === null || value === undefined || value === false) return "";
  return ` ${name}="${typeof value === "number" ? rounded(value) : escaped(String(value))}"`;
}

/** In a `style` element, HTML reads no escapes, and XML does: text that needs none is the same in both. */
function textIn(tag, text) {
  if (tag !== "style") return escaped(text);
  if (/[<&]/.test(text)) throw new RangeError("a stylesheet with markup cannot be written");
  return text;
}

/** Characters that XML does not allow are replaced. */
function escaped(text) {
  const allowed = text.replace(/[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
  return allowed.replace(/[&<>"']/g, (letter) => ESCAPES[letter]);
}
