// SPDX-License-Identifier: Apache-2.0
/** A button that copies a text; nothing where the browser does not let pages write to the clipboard. */

import { h } from "./dom.js";

export function copyButton(text, what) {
  if (navigator.clipboard === undefined) return null;
  const copy = (event) => {
    const button = event.currentTarget;
    navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Not allowed"; });
  };
  return h("button", { key: text, type: "button", class: "copy", onclick: copy, "aria-label": `Copy: ${what}` }, "Copy");
}
