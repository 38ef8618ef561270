// Calls of the gateway's API from a page: JSON in, JSON out, errors as a Problem.

import { root } from "./el.js";

export class Problem extends Error {
  constructor(found) {
    super(found.detail || found.title);
    this.name = "Problem";
    this.status = found.status ?? 0;
    this.code = found.code ?? "";
    this.title = found.title ?? "Request failed";
    this.detail = found.detail ?? "";
    this.hint = found.hint ?? "";
    this.request_id = found.request_id ?? "";
    this.found = found;
  }
}

// `path` starts with /v1. Throws Problem; an aborted call throws the error of fetch.
export async function api(method, path, body = undefined, { headers = {}, signal = undefined } = {}) {
  const sent = { accept: "application/json", "x-comet-csrf": csrf(), ...headers };
  const request = { method, headers: sent, signal, credentials: "same-origin" };
  if (body !== undefined) {
    sent["content-type"] ??= "application/json";
    request.body = typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body);
  }
  if (!sent["x-comet-csrf"]) delete sent["x-comet-csrf"];
  let answer;
  try {
    answer = await fetch(root + path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The gateway does not answer", code: "UNREACHABLE", hint: "Try again in a moment." });
  }
  const id = answer.headers.get("x-request-id") ?? "";
  const kind = answer.headers.get("content-type") ?? "";
  const parsed = kind.includes("json") ? await answer.json().catch(() => null) : null;
  signal?.throwIfAborted(); // the body may have ended early
  if (!answer.ok) {
    throw new Problem({ title: answer.statusText, status: answer.status, request_id: id, ...parsed });
  }
  return parsed;
}

function csrf() {
  return document.querySelector('meta[name="csrf"]')?.content ?? "";
}
