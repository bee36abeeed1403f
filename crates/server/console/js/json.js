// JSON without loss. A u64 or a long decimal does not fit a JavaScript number: JSON.parse would change its digits and
// nobody would notice. Numbers that would change are kept as the text they were.

/** A number as it was written. In arithmetic it is the nearest double. */
export class Digits {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }
}

const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parses JSON; numbers that a double cannot hold digit by digit become `Digits`. */
export function parseExact(text) {
  // No string of the document can begin with what nobody knew before.
  const mark = `digits-${crypto.getRandomValues(new Uint32Array(4)).join('-')}:`;
  const marked = text.replace(STRING_OR_NUMBER, (token) =>
    token[0] === '"' || String(Number(token)) === token ? token : `"${mark}${token}"`);
  return JSON.parse(marked, (_, value) =>
    typeof value === 'string' && value.startsWith(mark) ? new Digits(value.slice(mark.length)) : value);
}

/** The text of a parsed document, with the digits it came with. */
export function writeExact(value, indent = '') {
  if (value instanceof Digits) return value.text;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((item) => writeExact(item, indent && `${indent}  `))
    : Object.entries(value).map(([key, item]) =>
      `${JSON.stringify(key)}:${indent && ' '}${writeExact(item, indent && `${indent}  `)}`);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  if (entries.length === 0) return open + close;
  // `indent` begins with a line break where the text is for people.
  return indent ? `${open}${indent}  ${entries.join(`,${indent}  `)}${indent}${close}` : open + entries.join(',') + close;
}
