// Calls with an NDJSON response, read line by line.

import { root } from "./el.js";
import { Problem } from "./api.js";

// Yields each line of the response as it arrives. A `body` that is a text is NDJSON itself. Throws Problem; after `signal` the error of fetch.
export async function* lines(method, path, body, signal) {
  const text = typeof body === "string";
  const headers = { accept: "application/x-ndjson, application/json", "content-type": text ? "application/x-ndjson" : "application/json" };
  const csrf = document.querySelector('meta[name="csrf"]')?.content;
  if (csrf) headers["x-comet-csrf"] = csrf;
  let answer;
  try {
    answer = await fetch(root + path, { method, headers, body: text ? body : JSON.stringify(body), signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The gateway does not answer", code: "UNREACHABLE", hint: "Try again in a moment." });
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => null);
    throw new Problem({ title: answer.statusText, status: answer.status, request_id: answer.headers.get("x-request-id") ?? "", ...problem });
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
    if (done) return;
  }
}
