// SPDX-License-Identifier: Apache-2.0
/**
 * Reads the live stream, one JSON message a line. Reconnects with growing pauses, asks for the key when the
 * server wants one, and is closed while the page is hidden.
 */

const KEY = "slipring-admin-key";
const LONGEST_PAUSE_MS = 15_000;
const PATIENCE_MS = 6_000;

export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** GET with the key, if there is one. */
export function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

/** `onMessage(message)`; `onStatus({state, retryAt, reason})` with state connecting, live, lost, locked or hidden. */
export class Stream {
  constructor(onMessage, onStatus) {
    this.onMessage = onMessage;
    this.onStatus = onStatus;
    this.abort = null;
    this.timer = null;
    this.failures = 0;
    this.isLive = false;
  }

  open() {
    this.stop();
    this.read();
  }

  /** Close it until `open`. */
  close(state = "hidden") {
    this.stop();
    this.failures = 0;
    this.onStatus({ state });
  }

  stop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.abort?.abort();
    this.abort = null;
    this.isLive = false;
  }

  async read() {
    const abort = new AbortController();
    this.abort = abort;
    this.onStatus({ state: "connecting" });
    let reason = "the server ended the stream";
    try {
      this.watch(abort);
      const answer = await request("live", { signal: abort.signal });
      if (answer.status === 401) {
        this.stop();
        this.onStatus({ state: "locked", wasRefused: sessionStorage.getItem(KEY) !== null });
        return;
      }
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await this.lines(answer.body, abort);
    } catch (error) {
      reason = error.name === "TypeError" || error.name === "AbortError" ? "the server does not answer" : error.message;
    }
    if (this.abort !== abort) return;
    this.stop();
    this.failures += 1;
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** Math.min(this.failures, 6)) * (0.75 + Math.random() / 4);
    this.onStatus({ state: "lost", retryAt: performance.now() + pause, reason });
    this.timer = setTimeout(() => this.read(), pause);
  }

  /** A stream that is silent for long is dead. */
  watch(abort) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => abort.abort(), PATIENCE_MS);
  }

  async lines(body, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.abort !== abort) return;
      this.watch(abort);
      const parts = value.split("\n");
      rest.push(parts[0]);
      for (let index = 1; index < parts.length; index += 1) {
        this.receive(rest.join(""));
        rest = [parts[index]];
      }
    }
  }

  receive(text) {
    if (text === "") return;
    this.onMessage(JSON.parse(text));
    this.failures = 0;
    if (!this.isLive) this.onStatus({ state: "live" });
    this.isLive = true;
  }
}
