// Query: a form, what it would cost before it runs, and what it was worth after.
//
// The plan is asked for while one types (`explain` touches no row), so the path, the shards and the price are on the page
// before anybody pays them, also for a query that would be refused.

import { get, post, Problem } from './api.js';
import { copy, curl } from './curl.js';
import {
  byId, chip, count, debounced, facts, h, hintLine, icon, mark, micros, percent, plural, problemBox, put,
  refill, ticked,
} from './dom.js';
import { Digits, writeExact } from './json.js';
import { slotBar } from './slots.js';

/** The paths, cheapest first, and what each asks. */
const LADDER = [
  ['A', 'one shard'],
  ['AB', 'shards of some ids'],
  ['B', 'one group'],
  ['BP', 'part of a group'],
  ['CI', 'ids in every group'],
  ['C', 'every shard'],
];

/** A query may take longer than a look at the server; the server's own limit is 10 s unless it is told otherwise. */
const QUERY_WITHIN_MS = 60_000;

/** What the address may say, and the element that shows it. */
const WORDS = ['store', 'tenant', 'ids', 'where', 'order', 'limit', 'from', 'to', 'fields', 'allow', 'partial'];

/** Digits that a JavaScript number holds go as a number, anything else as text: the server judges it. */
const numberOrText = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : text);

const list = (text) => text.split(/[\s,]+/).filter(Boolean);

export class Query {
  #cancel = null;
  #planning = null;
  #planned = null;
  #cursors = [];
  #asked = null;
  #remembered = '';

  constructor(root, frame) {
    this.frame = frame;
    this.stores = [];
    this.plan = null;
    /** Whether the plan has been carried out, and what of it was not answered. */
    this.answered = false;
    this.missing = [];
    this.#build(root);
    this.ready = this.#stores();
  }

  // --- the form ---

  #build(root) {
    const field = (id, label, input, note) => {
      input.id = `q-${id}`;
      const labelled = h('label', { for: input.id }, label);
      return [labelled, input, note && h('p', { class: 'note', id: `${input.id}-note` }, note)];
    };
    const text = (attributes = {}) => h('input', { type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', ...attributes });
    const group = (...content) => h('div', { class: 'field' }, content);
    const check = (id, label) => h('label', { class: 'check' }, h('input', { type: 'checkbox', id: `q-${id}` }), h('span', {}, label));

    this.tenantLabel = h('span', {}, 'tenant');
    this.idLabel = h('span', {}, 'ids');
    this.caret = h('pre', { class: 'caret', hidden: true, 'aria-hidden': 'true' });
    this.whereError = h('p', { class: 'field-error', id: 'q-where-error', hidden: true });
    this.run = h('button', { type: 'submit', class: 'primary' }, 'Run');
    this.explainButton = h('button', { type: 'button', onclick: () => this.#explain() }, 'Explain');
    this.stop = h('button', { type: 'button', disabled: true, onclick: () => this.cancel() }, 'Cancel');

    this.form = h('form', { class: 'panel form', 'aria-label': 'Query', novalidate: true },
      group(field('store', 'store', h('select'))),
      group(field('tenant', this.tenantLabel, text({ inputmode: 'numeric', placeholder: 'any' }))),
      group(field('ids', this.idLabel, text({ inputmode: 'numeric', placeholder: 'any; several with commas' }))),
      group(field('where', 'filter', text({ class: 'code', placeholder: 'size > 1000 && mime like image/*', 'aria-describedby': 'q-where-error', enterkeyhint: 'go' })),
        this.caret, this.whereError),
      h('div', { class: 'pair' },
        group(field('order', 'order', h('select'))),
        group(field('limit', 'rows a page', text({ inputmode: 'numeric', value: '100' })))),
      h('details', { class: 'more', id: 'q-more' }, h('summary', {}, 'time and columns'),
        h('div', { class: 'pair' },
          group(field('from', 'from (inclusive)', text({ placeholder: '2024-01-01T00:00:00Z' }))),
          group(field('to', 'to (exclusive)', text({ placeholder: '2025-01-01T00:00:00Z' })))),
        group(field('fields', 'columns', text({ placeholder: 'the listing' })))),
      h('div', { class: 'checks' },
        check('allow', [h('code', {}, 'allow=global'), ' ask every group if need be']),
        check('partial', [h('code', {}, 'partial=allow'), ' take an answer with gaps'])),
      h('div', { class: 'buttons' }, this.run, this.explainButton, this.stop));

    this.planBox = h('section', { class: 'panel', 'aria-label': 'Plan' });
    this.full = h('section', { class: 'panel', 'aria-label': 'Explanation', hidden: true });
    this.answer = h('section', { class: 'answer', 'aria-label': 'Answer', 'aria-busy': 'false' });
    this.curlText = h('code', { id: 'q-curl' });
    this.copyButton = h('button', { type: 'button', onclick: () => this.#copy() }, 'Copy');
    this.curlBox = h('section', { class: 'panel curl', 'aria-label': 'The same with curl' },
      h('div', { class: 'panel-head' }, h('h2', {}, 'The same with curl'), this.copyButton),
      h('pre', {}, this.curlText));

    root.append(h('h1', { class: 'sr-only' }, 'Query'), h('div', { class: 'split asking' },
      this.form, h('div', { class: 'stack results' }, this.planBox, this.full, this.answer), this.curlBox));

    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#run([]);
    });
    const soon = debounced(200, () => this.#edited());
    this.form.addEventListener('input', (event) => {
      if (event.target.id === 'q-store') this.#named();
      this.#clearMark();
      soon();
    });
    this.#emptyAnswer();
  }

  async #stores() {
    try {
      this.stores = (await get('v1/stores')).body.stores;
    } catch {
      // The connection says so, and `back` tries again.
      return;
    }
    const select = byId('q-store');
    const chosen = select.value;
    select.replaceChildren(...this.stores.map((store) => h('option', { value: store.name }, store.name)));
    if (this.stores.some((store) => store.name === chosen)) select.value = chosen;
    this.#named();
  }

  get store() {
    return this.stores.find((store) => store.name === byId('q-store').value) ?? this.stores[0];
  }

  /** Calls the fields by the store's own names. */
  #named() {
    const { store } = this;
    if (!store) return;
    put(this.tenantLabel, store.tenant);
    put(this.idLabel, `${store.id}, one or more`);
    const order = byId('q-order');
    const chosen = order.value;
    const orders = [
      ['', 'default'],
      ...(store.time ? [[`${store.time}:desc`], [`${store.time}:asc`]] : []),
      [`${store.id}:asc`],
    ];
    order.replaceChildren(...orders.map(([value, label = value]) => h('option', { value }, label)));
    if (orders.some(([value]) => value === chosen)) order.value = chosen;
  }

  #value(word) {
    const input = byId(`q-${word}`);
    if (input.type === 'checkbox') return input.checked ? (word === 'allow' ? 'global' : 'allow') : '';
    return input.value.trim();
  }

  /** The request the form describes. 64-bit ids go as text. */
  #body() {
    const { store } = this;
    if (!store) return null;
    const body = {};
    const ids = list(this.#value('ids'));
    if (this.#value('tenant')) body[store.tenant] = this.#value('tenant');
    if (ids.length === 1) [body[store.id]] = ids;
    if (ids.length > 1) body[`${store.id}s`] = ids;
    for (const word of ['where', 'from', 'to', 'order', 'allow', 'partial']) {
      // The caret of an error counts in what is in the field, so a filter goes as it stands there.
      const value = word === 'where' ? byId('q-where').value : this.#value(word);
      if (value.trim()) body[word] = value;
    }
    if (this.#value('limit')) body.limit = numberOrText(this.#value('limit'));
    if (this.#value('fields')) body.fields = list(this.#value('fields'));
    return body;
  }

  #words() {
    const words = new URLSearchParams();
    for (const word of WORDS) {
      const value = this.#value(word);
      const usual = { store: this.stores[0]?.name, limit: '100' }[word];
      if (value && value !== usual) words.set(word, value);
    }
    return words;
  }

  // --- what the frame calls ---

  /** `words` is what an address says; null comes back to what was here. */
  async show(words) {
    await this.ready;
    if (words === null) {
      this.frame.address('query', this.#remembered);
      if (this.#planned === null) this.#planNow();
      return;
    }
    if (String(words) === this.#remembered && this.#planned !== null) return;
    for (const word of WORDS) {
      const input = byId(`q-${word}`);
      const value = words.get(word) ?? '';
      if (input.type === 'checkbox') input.checked = value !== '';
      else if (word === 'limit') input.value = value || '100';
      else if (word === 'store') input.value = value || (this.stores[0]?.name ?? '');
      else input.value = value;
      if (word === 'store') this.#named();
    }
    if (words.get('from') || words.get('to') || words.get('fields')) byId('q-more').open = true;
    this.#remembered = String(words);
    this.#emptyAnswer();
    const asks = this.#value('tenant') || this.#value('ids') || this.#value('where');
    // A link may ask one group; what asks everybody is run by whoever opens it.
    if (asks && !this.#value('allow')) this.#run([]);
    else this.#planNow();
  }

  focusQuery() {
    byId('q-where').focus();
    byId('q-where').select();
  }

  cancel() {
    this.#cancel?.abort();
  }

  /** The server is back: what it said before may not be true any more. */
  back() {
    this.ready = this.#stores();
    this.#planned = null;
  }

  /** The deployment was looked at: slots may have other owners now. */
  deployment() {
    if (this.plan && this.shownEpoch !== String(this.frame.seen.topology?.epoch)) this.#showPlan();
    if (!byId('query').hidden && this.#planned === null) this.ready.then(() => this.#planNow());
  }

  // --- the plan ---

  #edited() {
    this.#remembered = String(this.#words());
    this.frame.address('query', this.#remembered);
    this.#planNow();
  }

  async #planNow() {
    const body = this.#body();
    if (body === null) return;
    this.#command(body);
    const text = JSON.stringify([this.store.name, body]);
    if (text === this.#planned) return;
    this.#planned = text;
    this.answered = false;
    this.missing = [];
    this.#planning?.abort();
    const planning = new AbortController();
    this.#planning = planning;
    try {
      const { body: plan } = await post(`v1/${this.store.name}/explain`, body, { cancel: planning.signal });
      if (this.#planning !== planning) return;
      this.plan = plan;
      this.#clearMark();
      this.#showPlan();
    } catch (problem) {
      if (this.#planning !== planning || problem.code === 'cancelled') return;
      this.plan = null;
      // An answer that never came is asked for again when the server is back.
      if (!problem.answered) this.#planned = null;
      this.#refused(problem);
    }
  }

  #refused(problem) {
    const here = problem.code === 'bad_expression';
    if (here) this.#mark(problem);
    this.full.hidden = true;
    refill(this.planBox,
      h('div', { class: 'panel-head' }, h('h2', {}, 'Plan'), chip('bad', 'bad', 'none')),
      h('p', {}, h('code', {}, problem.code), ' ', ticked(problem.message)),
      problem.hint && hintLine(problem.hint));
  }

  #mark(problem) {
    const column = Number(problem.at?.column ?? 0);
    mark(byId('q-where'), this.caret, column > 0 ? column : null);
    byId('q-where').setAttribute('aria-invalid', 'true');
    const expected = problem.expected?.length > 0 ? `; expected ${problem.expected.join(', ')}` : '';
    put(this.whereError, `column ${column}: ${problem.message}${expected}`);
    this.whereError.hidden = false;
  }

  #clearMark() {
    mark(byId('q-where'), this.caret, null);
    this.whereError.hidden = true;
    put(this.whereError, '');
  }

  #showPlan() {
    const { plan } = this;
    const { topology, stats } = this.frame.seen;
    this.shownEpoch = String(topology?.epoch);
    const allowed = plan.verdict === 'allowed';
    const shards = topology ? topology.groups.reduce((sum, group) => sum + group.shards.length, 0) : null;
    const groups = topology?.groups.length ?? null;
    const of = (part, whole, word) => (whole === null ? plural(part, word) : `${count(part)} of ${plural(whole, word)}`);
    const reading = stats?.shards.filter((shard) => shard.state === 'READY').length;

    refill(this.planBox,
      h('div', { class: 'panel-head' }, h('h2', {}, 'Plan'),
        allowed ? chip('good', 'ok', 'allowed') : chip('bad', 'bad', plan.verdict)),
      this.#ladder(plan.path),
      h('p', {}, ticked(plan.why)),
      facts([
        ['fan-out', `${of(plan.shards, shards, 'shard')}, ${of(plan.groups, groups, 'group')}`],
        ['slots', count(plan.slots)],
        ['price', h('strong', {}, `≈ ${plan.estimate.cost}`)],
        ['examines', `about ${count(plan.estimate.examined)}, at most ${count(plan.estimate.examined_max)}`],
        ['order', h('code', {}, plan.order)],
        plan.tenant && ['tenant', `in ${plan.tenant.group} by ${plan.tenant.by} ${plan.tenant.by === 'bucket' ? plan.tenant.bucket : ''}`],
        reading !== undefined && reading < stats.shards.length && ['ready', `${reading} of ${stats.shards.length} shards`],
      ]),
      h('div', { class: 'bars' }, topology?.groups.map((group) => this.#groupBar(group))),
      !allowed && plan.denied && h('div', { class: 'refusal' },
        h('p', {}, icon('bad'), h('code', {}, plan.denied.code), ' ', ticked(plan.denied.message)),
        plan.denied.hint && hintLine(plan.denied.hint),
        this.#allowButton()),
      plan.cheaper.length > 0 && h('div', { class: 'cheaper' }, h('h3', {}, 'cheaper'),
        h('ul', {}, plan.cheaper.map((way) => h('li', {}, ticked(way))))));
    if (!this.full.hidden) this.#showFull();
  }

  #ladder(path) {
    return h('ol', { class: 'ladder', 'aria-label': 'paths, cheapest first' }, LADDER.map(([name, what]) =>
      h('li', { class: name === path ? 'here' : '', 'aria-current': name === path ? 'step' : null, title: what },
        h('b', {}, name), h('span', {}, what))));
  }

  #groupBar(group) {
    const asked = new Map();
    for (const target of this.plan.targets.filter((target) => target.group === group.name)) {
      const missing = this.missing.find((gap) => gap.group === group.name && gap.shard === target.shard);
      asked.set(target.shard, { slots: target.slots, count: target.slot_count, missing: missing?.reason ?? null });
    }
    const [drawing, word] = this.answered ? ['ok', 'answered'] : ['go', 'would be asked'];
    const words = [...asked].map(([shard, ask]) => h('li', { class: ask.missing ? 'gap' : this.answered ? 'got' : '' },
      icon(ask.missing ? 'bad' : drawing), h('b', {}, shard), !ask.missing && h('span', { class: 'sr-only' }, ` ${word}`),
      ` ${Number(ask.count) === 1 ? `slot ${ask.slots}` : plural(ask.count, 'slot')}`,
      ask.missing && ` – ${ask.missing}`));
    return h('div', { class: 'bar-row' }, h('h3', {}, group.name), slotBar(group, asked),
      h('ul', { class: 'asked' }, words.length > 0 ? words : h('li', { class: 'muted' }, 'not asked')));
  }

  #allowButton() {
    return h('button', {
      type: 'button',
      onclick: () => {
        byId('q-allow').checked = true;
        this.#edited();
        this.run.focus();
      },
    }, 'Set allow=global');
  }

  // --- explain ---

  async #explain() {
    this.full.hidden = false;
    this.#planned = null;
    await this.#planNow();
    if (this.plan === null) {
      this.full.hidden = true;
      return;
    }
    this.#showFull();
    this.full.querySelector('h2').focus();
    const { plan } = this;
    this.frame.say(`explanation: path ${plan.path}, ${plural(plan.shards, 'shard')}, price about ${plan.estimate.cost}, ${plan.verdict}`);
  }

  #showFull() {
    const { plan } = this;
    const bound = (at) => plan.time_bounds[at] ?? 'open';
    refill(this.full,
      h('div', { class: 'panel-head' }, h('h2', { tabindex: '-1' }, 'Explanation'),
        h('button', { type: 'button', onclick: () => { this.full.hidden = true; this.explainButton.focus(); } }, 'Close')),
      facts([
        ['filter', plan.where ? h('code', {}, plan.where) : 'none'],
        ['time', `${bound(0)} to ${bound(1)}`],
        plan.bounds_found.length > 0 && ['bounds from', h('code', {}, plan.bounds_found.join(', '))],
        ['columns', h('code', {}, plan.fields.join(', '))],
        plan.fields_beyond_listing.length > 0 && ['cost a read per row', h('code', {}, plan.fields_beyond_listing.join(', '))],
        ['topology epoch', String(plan.topology_epoch)],
        plan.missing_slots > 0 && ['slots nobody owns', count(plan.missing_slots)],
      ]),
      this.#scroll('shards asked and their copies', h('table', {},
        h('thead', {}, h('tr', {}, ['group', 'shard', 'slots', 'copy', 'state', 'chance'].map((name) =>
          h('th', { scope: 'col', class: ['slots', 'chance'].includes(name) ? 'num' : '' }, name)))),
        h('tbody', {}, plan.targets.flatMap((target) => (target.replicas.length > 0 ? target.replicas : [null]).map((copy) => h('tr', {},
          h('td', {}, target.group), h('td', {}, target.shard), h('td', { class: 'num' }, count(target.slot_count)),
          copy === null
            ? h('td', { colspan: '3' }, 'no copy is known')
            : [
              h('td', {}, h('code', {}, copy.address)),
              h('td', {}, copy.kept ? chip('good', 'ok', copy.state) : chip('bad', 'bad', `${copy.state}, ${copy.dropped_by ?? 'dropped'}`)),
              h('td', { class: 'num' }, percent(Number(copy.probability))),
            ])))))),
      h('details', {}, h('summary', {}, 'as JSON'), h('pre', { class: 'json', role: 'region', 'aria-label': 'the explanation as JSON', tabindex: '0' }, writeExact(plan, '\n'))));
  }

  // --- running ---

  async #run(cursors) {
    this.cancel();
    await this.ready;
    const body = this.#body();
    if (body === null) return;
    const { store } = this;
    const cancel = new AbortController();
    this.#cancel = cancel;
    const asked = cursors.length > 0 ? { ...body, cursor: cursors.at(-1) } : body;
    this.#remembered = String(this.#words());
    this.frame.address('query', this.#remembered, true);
    this.#busy(true);
    const planning = this.#planNow();
    this.#command(asked);
    try {
      const { body: answer, ms, requestId } = await post(`v1/${store.name}/query`, asked, { cancel: cancel.signal, within: QUERY_WITHIN_MS });
      await planning;
      if (this.#cancel !== cancel) return;
      this.#cursors = cursors;
      this.#asked = asked;
      this.#covered(answer.meta);
      this.#showRows(store, answer, ms, requestId);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      await planning;
      if (this.#cancel !== cancel) return;
      if (problem.meta) this.#covered(problem.meta);
      this.#showProblem(problem);
    } finally {
      if (this.#cancel === cancel) {
        this.#cancel = null;
        this.#busy(false);
      }
    }
  }

  #busy(busy) {
    // The button that had the focus must not lose it to nowhere.
    if (!busy && document.activeElement === this.stop) this.run.focus();
    this.stop.disabled = !busy;
    this.answer.setAttribute('aria-busy', String(busy));
    this.answer.classList.toggle('busy', busy);
    this.form.classList.toggle('running', busy);
  }

  /** Shows in the bars what an answer lacks. */
  #covered(meta) {
    const before = JSON.stringify([this.answered, this.missing]);
    this.answered = true;
    this.missing = meta.missing ?? [];
    if (this.plan && JSON.stringify([this.answered, this.missing]) !== before) this.#showPlan();
  }

  #showProblem(problem) {
    if (problem.code === 'bad_expression') this.#mark(problem);
    // The page would find out by itself, a little later.
    if (!problem.answered && problem.code !== 'cancelled') this.frame.look();
    const actions = problem.code === 'global_scan_not_allowed' ? [this.#allowButton()] : [];
    const { meta } = problem;
    refill(this.answer, h('div', { class: 'panel' }, problemBox(problem, ...actions), meta && this.#coverage(meta)));
  }

  #coverage(meta) {
    const { shards } = meta;
    const gone = ['failed', 'timed_out', 'not_ready'].filter((word) => shards[word] > 0)
      .map((word) => `${count(shards[word])} ${word.replace('_', ' ')}`);
    return facts([
      ['path', h('strong', {}, meta.path)],
      ['shards', `${count(shards.ok)} of ${count(shards.total)} answered${gone.length > 0 ? ` (${gone.join(', ')})` : ''}`],
      ['slots', `${count(meta.slots.answered)} of ${count(meta.slots.wanted)}`],
      ['cost', h('strong', {}, String(meta.cost))],
      ['examined', count(meta.examined)],
      meta.row_reads > 0 && ['row reads', count(meta.row_reads)],
      meta.hedged > 0 && ['hedged', count(meta.hedged)],
      ['server time', micros(meta.took_us)],
      meta.missing.length > 0 && ['missing', h('ul', {}, meta.missing.map((gap) =>
        h('li', {}, `${gap.group}/${gap.shard}: ${gap.reason}`)))],
    ]);
  }

  #showRows(store, answer, ms, requestId) {
    const { rows, meta, next } = answer;
    const page = this.#cursors.length + 1;
    const complete = meta.complete
      ? chip('good', 'ok', 'complete') : chip('bad', 'warn', 'incomplete: rows are missing');
    const previous = h('button', { type: 'button', disabled: page === 1, onclick: () => this.#turn(this.#cursors.slice(0, -1)) }, '← Previous');
    const following = h('button', { type: 'button', disabled: next === null, onclick: () => this.#turn([...this.#cursors, next]) }, 'Next →');
    this.previous = previous;
    this.following = following;
    const whole = meta.complete ? 'all of it' : 'all that could be had';
    const state = next === null ? (page === 1 ? whole : 'the last page') : 'more follow';
    refill(this.answer, h('div', { class: 'panel' },
      h('div', { class: 'panel-head' }, h('h2', {}, 'Answer'), complete),
      this.#coverage(meta),
      rows.length > 0 ? this.#table(store, rows)
        : h('p', { class: 'empty' }, next === null ? 'No row matches.' : 'No row on this page: the budget of work was spent before one was found. More may follow.'),
      h('div', { class: 'pager' }, previous, h('span', {}, `page ${page}: ${plural(rows.length, 'row')}, ${state}`), following),
      h('p', { class: 'muted small' }, `${ms.toFixed(0)} ms there and back`, requestId && [' · request ', h('code', {}, requestId)])));
    this.frame.say(`${plural(rows.length, 'row')}, ${meta.complete ? 'complete' : 'incomplete'}, path ${meta.path}, cost ${meta.cost}, page ${page}, ${state}`);
  }

  async #turn(cursors) {
    const forward = cursors.length > this.#cursors.length;
    await this.#run(cursors);
    // The page was built anew under the button that was pressed.
    const [first, second] = forward ? [this.following, this.previous] : [this.previous, this.following];
    if (document.activeElement === document.body) (first?.disabled ? second : first)?.focus();
  }

  #table(store, rows) {
    const names = Object.keys(rows[0]);
    const numeric = (name) => /^(u64|i64|f64|decimal)/.test(store.columns[name] ?? '');
    const wide = (name) => /^(string|json|bytes)/.test(store.columns[name] ?? '');
    const link = (words) => `#/query?${new URLSearchParams({ ...(store.name !== this.stores[0].name && { store: store.name }), ...words })}`;
    const cell = (row, name) => {
      const value = row[name];
      if (value === null) return h('td', {}, h('span', { class: 'muted' }, 'NULL'));
      const text = typeof value === 'object' && !(value instanceof Digits) ? writeExact(value) : String(value);
      const tenant = row[store.tenant];
      const id = row[store.id];
      const to = name === store.tenant ? { tenant: text }
        : name === store.id && tenant !== undefined ? { tenant: String(tenant), ids: String(id) } : null;
      const shown = to ? h('a', { href: link(to), title: name === store.id ? 'this row, path A' : 'all rows of this tenant, path B' }, text) : text;
      return h('td', { class: `${numeric(name) ? 'num' : ''} ${wide(name) && text.length > 24 ? 'wide' : ''}` }, shown);
    };
    return this.#scroll(`rows of ${store.name}`, h('table', { class: 'rows-table' },
      h('thead', {}, h('tr', {}, names.map((name) => h('th', { scope: 'col', class: numeric(name) ? 'num' : '' },
        name, h('span', { class: 'type' }, store.columns[name] ?? ''))))),
      h('tbody', {}, rows.map((row) => h('tr', {}, names.map((name) => cell(row, name)))))));
  }

  #scroll(label, table) {
    // What scrolls must be reachable by keys.
    return h('div', { class: 'scroll', role: 'region', 'aria-label': label, tabindex: '0' }, table);
  }

  #emptyAnswer() {
    this.cancel();
    this.#cursors = [];
    refill(this.answer, h('div', { class: 'panel empty' }, h('p', {}, 'Press ', h('kbd', {}, 'Enter'), ' to run the query.')));
  }

  // --- curl ---

  #command(body) {
    put(this.curlText, curl(`v1/${this.store.name}/query`, body));
  }

  async #copy() {
    const worked = await copy(this.curlText.textContent);
    if (!worked) {
      const range = document.createRange();
      range.selectNodeContents(this.curlText);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }
    const word = worked ? 'Copied' : 'Selected: press Ctrl-C';
    put(this.copyButton, word);
    this.frame.say(word);
    setTimeout(() => put(this.copyButton, 'Copy'), 2_000);
  }
}
