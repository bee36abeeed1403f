// Building and changing elements. Text goes in as text, never as markup: rows and metadata belong to strangers.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element: `h('p', { class: 'note' }, 'text', node, [nodes], null)`. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Puts new children in the place of the old ones; takes what `h` takes. */
export function refill(node, ...children) {
  node.replaceChildren();
  fill(node, {}, children);
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** Words with `code` in them, as the server's messages have it. */
export const ticked = (text) => text.split('`').map((part, at, parts) =>
  (at % 2 === 0 || at === parts.length - 1 ? `${at % 2 === 0 ? '' : '`'}${part}` : h('code', {}, part)));

/** Sets text only when it differs, so that a selection survives a poll. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets a class that is one of a family: `family('state', 'state-ready')` takes the other `state-…` away. */
export function family(node, prefix, name) {
  for (const old of [...node.classList]) if (old.startsWith(prefix) && old !== name) node.classList.remove(old);
  node.classList.add(name);
}

const PATHS = {
  ok: 'M3 8.5l3.2 3.2L13 4.8',
  bad: 'M4 4l8 8M12 4l-8 8',
  warn: 'M8 2.5l6 10.8H2zM8 6.6v3M8 11.6v.1',
  wait: 'M8 2a6 6 0 1 0 6 6M8 4.8V8l2.2 1.6',
  follow: 'M13 6.2A5.4 5.4 0 0 0 3.4 5M3 9.8A5.4 5.4 0 0 0 12.6 11M3.2 2.2V5H6M12.8 13.8V11H10',
  drain: 'M8 2v8M4.8 7L8 10.2 11.2 7M3 13.5h10',
  go: 'M3 8h9M8.5 4.5L12 8l-3.5 3.5',
  ask: 'M5.6 6a2.4 2.4 0 1 1 3.4 2.2c-.7.4-1 .8-1 1.6M8 12.4v.1',
  info: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4M8 7.5v3.7M8 4.9v.1',
};

/** A small line drawing. It stands beside words that say the same, so it is hidden from screen readers. */
export function icon(name) {
  return s('svg', { class: 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' },
    s('path', { d: PATHS[name] }));
}

/** Words with an icon on a tinted ground: `tone` is good, warn, bad, busy or plain. */
export function chip(tone, drawing, ...words) {
  return h('span', { class: `chip ${tone}` }, icon(drawing), h('span', {}, ...words));
}

const INTEGERS = new Intl.NumberFormat('en');

/** A count with thousands separated. */
export const count = (value) => (typeof value === 'object' || typeof value === 'string'
  ? INTEGERS.format(BigInt(String(value))) : INTEGERS.format(value));

/** `1 row`, `2 rows`. */
export const plural = (value, word, words = `${word}s`) => `${count(value)} ${Number(value) === 1 ? word : words}`;

/** A share: `33.3 %`; what is not nothing never shows as 0. */
export function percent(share) {
  if (share > 0 && share < 0.0005) return '< 0.1 %';
  return `${(share * 100).toFixed(share === 0 || share === 1 ? 0 : 1)} %`;
}

/** Bytes in the unit a person would use. */
export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  let rest = Number(value);
  while (rest >= 1024 && at < units.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${at === 0 || rest >= 100 ? rest.toFixed(0) : rest.toFixed(1)} ${units[at]}`;
}

/** A length of time given in microseconds. */
export function micros(value) {
  const us = Number(value);
  if (us < 1_000) return `${us.toFixed(0)} µs`;
  if (us < 1_000_000) return `${(us / 1_000).toFixed(us < 10_000 ? 2 : 1)} ms`;
  return `${(us / 1_000_000).toFixed(2)} s`;
}

/** How long ago: `now`, `12 s`, `3 min`, `2 h`. */
export function age(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${Math.max(seconds, 0)} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3_600)} h`;
}

/** Runs `work` when nothing has been said for `ms`. */
export function debounced(ms, work) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };
}

/** A list of terms: pairs of name and content; pairs that are null are left out. */
export function facts(pairs, attributes = { class: 'facts' }) {
  return h('dl', attributes, pairs.filter(Boolean).map(([name, ...content]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, ...content))));
}

/** What to do about it. */
export const hintLine = (text) => h('p', { class: 'hint' }, icon('info'), h('span', {}, ticked(text)));

/**
 * A problem for people: what, why, what to do. `actions` are buttons that repair it.
 */
export function problemBox(problem, ...actions) {
  return h('div', { class: 'problem', role: 'alert' },
    h('p', { class: 'problem-head' }, icon('bad'), h('code', {}, problem.code), problem.answered
      && h('span', { class: 'muted' }, `${problem.status} ${problem.title ?? ''}`)),
    h('p', {}, ticked(problem.message)),
    problem.expected?.length > 0 && h('p', {}, 'expected ', problem.expected.map((word, at) =>
      [at > 0 ? ', ' : '', h('code', {}, String(word))])),
    problem.hint && hintLine(problem.hint),
    problem.requestId && h('p', { class: 'muted small' }, 'request ', h('code', {}, problem.requestId)),
    actions.length > 0 && h('div', { class: 'buttons' }, actions));
}

/**
 * Marks a place in a text field: a caret under the character, under the field. `at` counts characters from 1; null takes
 * the mark away. The line has the field's font and scrolls with it.
 */
export function mark(field, line, at) {
  line.hidden = at === null;
  field.setAttribute('aria-invalid', String(at !== null));
  if (at === null) return line.replaceChildren();
  const before = Array.from(field.value).slice(0, at - 1).join('').padEnd(at - 1);
  const inner = h('span', { class: 'caret-inner' }, h('span', { class: 'caret-before' }, before), '^');
  line.replaceChildren(inner);
  const follow = () => { inner.style.marginLeft = `${-field.scrollLeft}px`; };
  field.onscroll = follow;
  return follow();
}
