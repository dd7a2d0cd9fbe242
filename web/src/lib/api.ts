// Requests to the server: JSON or binary responses; errors carry the server's message.
import type { Grid } from "./types";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

async function request(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`/api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      // A rejected text is not a failure of the page: the browser's console logs every status of 400 and above.
      headers: { "X-Error-Status": "200", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The server does not respond. Is `regard serve` still running?", 0);
  }
  const status = Number(response.headers.get("X-Error") ?? response.status);
  if (status < 400) return response;
  if (status === 401 || status === 403)
    throw new ApiError("The token is missing: open the full address that `regard serve` printed.", status);
  const failure = await response.json().catch(() => null);
  throw new ApiError(failure?.error ?? `The server returned status ${status}.`, status);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, undefined, signal)).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await request(path, body, signal)).json() as Promise<T>;
}

export async function getGrid(path: string, body?: unknown, signal?: AbortSignal): Promise<Grid> {
  const response = await request(path, body, signal);
  const shape = (response.headers.get("X-Shape") ?? "").split(",").map(Number);
  const ready = Number(response.headers.get("X-Ready") ?? shape[0]);
  return { shape, data: new Uint8Array(await response.arrayBuffer()), ready };
}

export const errorMessage = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** True if the page itself cancelled the request. */
export const isAborted = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";
