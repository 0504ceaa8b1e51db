// SPDX-License-Identifier: Apache-2.0
/** A scale as JSON: its ticks, and where it puts values and these ticks. */

import { fromZero, logarithmic, whole } from "./drawings.js";

globalThis.draw = ({ kind, given, values }) => {
  const { ticks, at } = { fromZero, logarithmic, whole }[kind](...given);
  return JSON.stringify({ ticks, places: values.map(at), tick_places: ticks.map(at) });
};
