// SPDX-License-Identifier: Apache-2.0
/** Writes an element with one attribute and one text. */

import { h } from "./dom.js";
import { written } from "./markup.js";

globalThis.draw = ({ tag, attribute, text }) => written(h(tag, { x: attribute === "nan" ? Number.NaN : attribute }, text));
