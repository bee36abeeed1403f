// The same request for a terminal. What the page does is never a secret of the page.

import { ROOT } from './api.js';

/** A word for a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The command that sends `body` to `path`. */
export function curl(path, body) {
  return [
    `curl -s ${quoted(new URL(path, ROOT).href)}`,
    "  -H 'content-type: application/json'",
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(' \\\n');
}

/** Copies text; says whether it worked. The clipboard is only there on a secure origin. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
