// SPDX-License-Identifier: Apache-2.0
/**
 * Describes elements as plain objects and brings a container to that description, changing only what
 * differs: focus, selection and scroll positions survive. Texts are never parsed as markup.
 */

const SVG = "http://www.w3.org/2000/svg";
const IN_SVG = new Set(
  "svg g path rect line circle polyline text title desc defs pattern".split(" "),
);

/**
 * The description of an element. `title` outside of an SVG is an attribute. Properties: `on…` are event
 * listeners, `style` is an object of CSS properties, `key` identifies it among its siblings, null and false
 * are left out.
 */
export function h(tag, properties, ...children) {
  return { tag, properties: properties ?? {}, children: children.flat(Infinity).filter(isShown) };
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

/** Make the children of an element those that are described. */
export function patch(parent, ...described) {
  const wanted = described.flat(Infinity).filter(isShown);
  const keyed = keyedChildren(parent);
  let at = parent.firstChild;
  for (const child of wanted) {
    const existing = fitting(child, at, keyed);
    const node = existing ?? create(child);
    if (existing !== null && typeof child === "object") update(existing, child);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    if (typeof child !== "object" && node.data !== String(child)) node.data = String(child);
  }
  while (at !== null) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

/** A new element. */
export function made(described) {
  return create(described);
}

function keyedChildren(parent) {
  const keyed = new Map();
  for (const child of parent.children) if (child.describedKey !== undefined) keyed.set(child.describedKey, child);
  return keyed;
}

function fitting(child, at, keyed) {
  if (typeof child !== "object") return at !== null && at.nodeType === Node.TEXT_NODE ? at : null;
  const key = child.properties.key;
  if (key !== undefined) {
    const found = keyed.get(key);
    return found !== undefined && found.describedTag === child.tag ? found : null;
  }
  const isSame = at !== null && at.describedTag === child.tag && at.describedKey === undefined;
  return isSame ? at : null;
}

function create(child) {
  if (typeof child !== "object") return document.createTextNode(String(child));
  const node = IN_SVG.has(child.tag)
    ? document.createElementNS(SVG, child.tag)
    : document.createElement(child.tag);
  node.describedTag = child.tag;
  node.describedKey = child.properties.key;
  node.described = {};
  update(node, child);
  return node;
}

function update(node, { properties, children }) {
  const before = node.described;
  for (const name of Object.keys(before)) if (!(name in properties)) set(node, name, null, before[name]);
  for (const [name, value] of Object.entries(properties)) {
    if (value !== before[name] && name !== "key") set(node, name, value, before[name]);
  }
  node.described = properties;
  patch(node, children);
}

function set(node, name, value, before) {
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {
    for (const property of Object.keys(before ?? {})) node.style.removeProperty(property);
    for (const [property, text] of Object.entries(value ?? {})) node.style.setProperty(property, text);
  } else if (name === "value" || name === "open") {
    if (node[name] !== value) node[name] = value ?? "";
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** A button that copies a text; nothing where the browser does not let pages write to the clipboard. */

export function copyButton(text, what) {
  if (navigator.clipboard === undefined) return null;
  const copy = (event) => {
    const button = event.currentTarget;
    navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Not allowed"; });
  };
  return h("button", { key: text, type: "button", class: "copy", onclick: copy, "aria-label": `Copy: ${what}` }, "Copy");
}
