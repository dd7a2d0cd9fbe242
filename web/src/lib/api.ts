// How the page asks: JSON or bytes, and one sentence when something is wrong.
import type { Grid } from "./types";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

async function ask(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The server does not answer. Is `regard serve` still running?", 0);
  }
  if (answer.ok) return answer;
  if (answer.status === 401 || answer.status === 403)
    throw new ApiError("This page needs its token: open the whole address that `regard serve` printed.", answer.status);
  const told = await answer.json().catch(() => null);
  throw new ApiError(told?.error ?? `The server answered ${answer.status}.`, answer.status);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, undefined, signal)).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await ask(path, body, signal)).json() as Promise<T>;
}

export async function bytes(path: string, body?: unknown, signal?: AbortSignal): Promise<Grid> {
  const answer = await ask(path, body, signal);
  const shape = (answer.headers.get("X-Shape") ?? "").split(",").map(Number);
  const ready = Number(answer.headers.get("X-Ready") ?? shape[0]);
  return { shape, data: new Uint8Array(await answer.arrayBuffer()), ready };
}

export const words = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** True when a request was given up on purpose, which is nothing to tell anybody. */
export const gaveUp = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";
