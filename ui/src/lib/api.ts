// Calls to the server: JSON in, JSON out, and errors that are sentences.

/** A refusal or failure, as the server words it. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** The status code; 0 when there was no answer. */
    readonly status: number,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

/** What went wrong, as a sentence. */
export function sentence(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  // A setting's or field's own name stays as it is.
  const first = /^\w*_/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** One call. Rejects with an `ApiError`; an abort rejects as `fetch` does. */
export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await send(method, path, body, signal);
  if (response.status === 204) return undefined as T;
  return (await response.json()) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => call<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}, signal?: AbortSignal) => call<T>("POST", path, body, signal);
export const put = <T>(path: string, body: unknown) => call<T>("PUT", path, body);

/** One call whose answer is still to be read; it is a good one. */
export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const init: RequestInit = { method, signal: signal ?? null, credentials: "same-origin" };
  if (body !== undefined) {
    init.headers = { "content-type": "application/json" };
    init.body = JSON.stringify(body);
  }
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. It may be starting, or it has ended", 0);
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response: Response): Promise<ApiError> {
  let message = `The server answered with status ${response.status}`;
  let code: string | null = null;
  try {
    const { error } = (await response.json()) as { error?: { message?: string; code?: string | null } };
    message = error?.message ?? message;
    code = error?.code ?? null;
  } catch {
    // No JSON: the status has to do.
  }
  return new ApiError(message, response.status, code);
}

/** The payloads of a stream of server-sent events, as they come. Ends at `[DONE]`. */
export async function* stream(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<unknown> {
  const response = await send("POST", path, body, signal);
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6).trim();
        if (data === "[DONE]") return;
        const payload = JSON.parse(data) as { error?: { message?: string; code?: string } };
        if (payload.error) throw new ApiError(payload.error.message ?? "The answer ended with an error", 200, payload.error.code ?? null);
        yield payload;
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
