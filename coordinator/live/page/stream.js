// Requests to the cell: JSON, and events as they arrive. The user is asked for a key when the cell
// demands one; it is kept here only.

import { $, say } from "./dom.js";

let key = "";
let asking = null;

export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** What went wrong, in a sentence for the user. */
export const trouble = (error) =>
  error instanceof Refused ? error.message : "The server cannot be reached.";

/**
 * Sends a request, with the key if there is one; asks for it and tries again where it is missing.
 * `anyone`: first without the key, whose owner may be allowed less than a caller without one.
 */
export async function call(path, { body, signal, anyone = false } = {}) {
  for (;;) {
    const shown = anyone ? "" : key;
    const headers = shown ? { authorization: `Bearer ${shown}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
    if (response.ok) return response;
    const text = await described(response);
    if (response.status !== 401) throw new Refused(text, response.status);
    if (key === shown) await keyFromUser(text);
    anyone = false;
  }
}

/** Yields the events of a stream until it ends; an error that comes as an event is thrown. */
export async function* events(path, options) {
  const response = await call(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        const event = JSON.parse(part.slice(6));
        if (event.error) throw new Refused(event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The same events, read as they arrive and queued, so that a slow reader does not hold them up. */
export async function* ahead(source) {
  const waiting = [];
  let wake = () => {};
  let over = false;
  let failure = null;
  (async () => {
    try {
      for await (const event of source) {
        waiting.push(event);
        wake();
      }
    } catch (error) {
      failure = error;
    }
    over = true;
    wake();
  })();
  for (;;) {
    while (waiting.length) yield waiting.shift();
    if (failure) throw failure;
    if (over) return;
    await new Promise((resolve) => (wake = resolve));
  }
}

async function described(response) {
  try {
    const body = await response.json();
    const error = body.error ?? body.detail;
    return typeof error === "string" ? error : (error?.message ?? `status ${response.status}`);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

/** One dialog, however many requests wait for the key. */
function keyFromUser(why) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    const hint = "It is kept in this page’s memory and forgotten when the page is closed.";
    say($("key-hint"), key ? `That key was not accepted: ${why} ${hint}` : hint);
    dialog.addEventListener("cancel", (event) => event.preventDefault(), { once: true });
    dialog.addEventListener(
      "close",
      () => {
        key = $("key").value.trim();
        $("key").value = "";
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}
