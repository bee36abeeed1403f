// The one module that talks to the server. Everything it returns is an answer; everything else is thrown as a `Problem`.

import { parseExact } from './json.js';

/** The server's root: the console lies one folder below it, also behind a proxy that adds a prefix. */
export const ROOT = new URL('..', document.baseURI);

/** How long the server may be silent before it counts as not answering; a query may say otherwise. */
const WITHIN_MS = 5_000;

/** Why there is no answer: a problem document of the server's, or `unreachable`, `no_answer`, `cancelled`, `not_json`. */
export class Problem extends Error {
  constructor(fields) {
    super(fields.detail ?? fields.code);
    this.status = 0;
    Object.assign(this, fields);
  }

  /** Whether the server is the one who said so. */
  get answered() {
    return this.status > 0;
  }
}

/**
 * Asks and returns `{ body, ms, requestId }`.
 * `cancel` is an AbortSignal of the caller's; `within` is in milliseconds.
 */
export async function ask(method, path, body, { cancel, within = WITHIN_MS } = {}) {
  const late = AbortSignal.timeout(within);
  const began = performance.now();
  let response;
  let text;
  try {
    response = await fetch(new URL(path, ROOT), {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: body === undefined ? {} : { 'content-type': 'application/json' },
      cache: 'no-store',
      credentials: 'same-origin',
      signal: cancel ? AbortSignal.any([cancel, late]) : late,
    });
    text = await response.text();
  } catch {
    if (cancel?.aborted) throw new Problem({ code: 'cancelled', detail: 'cancelled; the server stops working on it' });
    if (late.aborted) {
      throw new Problem({ code: 'no_answer', detail: `the server has not answered for ${within / 1000} s` });
    }
    throw new Problem({ code: 'unreachable', detail: `nothing answers at ${ROOT.origin}` });
  }
  const ms = performance.now() - began;
  const requestId = response.headers.get('x-request-id');
  let parsed;
  try {
    parsed = parseExact(text);
  } catch {
    const detail = `the answer is not JSON (status ${response.status})`;
    throw new Problem({ code: 'not_json', status: response.status, detail });
  }
  if (!response.ok) throw new Problem({ code: 'error', ...parsed, status: response.status, ms, requestId });
  return { body: parsed, ms, requestId };
}

export const get = (path, options) => ask('GET', path, undefined, options);
export const post = (path, body, options) => ask('POST', path, body, options);
