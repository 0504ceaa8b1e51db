// SPDX-License-Identifier: Apache-2.0
/** Draws a line chart of a report without a browser. */

import { lineChart } from "./lines.js";
import { written } from "./markup.js";

globalThis.draw = (chart) => written(lineChart(chart));
