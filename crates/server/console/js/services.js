// Services: who is registered, and a rule box that says for every instance why a rule keeps it or why not.
//
// The table is always an explanation, without a rule too: what is not healthy or has no weight is not picked, and here it
// says so.

import { get, post, Problem } from './api.js';
import { byId, chip, count, debounced, h, mark, percent, plural, problemBox, put, refill } from './dom.js';
import { writeExact } from './json.js';
import { Poller } from './poller.js';

const STATES = {
  fresh: ['good', 'ok', 'fresh'],
  stale: ['warn', 'warn', 'stale: the registry cannot confirm the list now'],
  unreachable: ['bad', 'bad', 'the registry is not reachable'],
  unresolved: ['busy', 'wait', 'not heard of yet'],
  unknown_service: ['bad', 'ask', 'the registry does not know it'],
};

const BALANCERS = [
  'weighted-random', 'random', 'round-robin', 'smooth-weighted-round-robin', 'consistent-hash', 'rendezvous', 'maglev',
  'least-active', 'peak-ewma',
];

const WORDS = ['service', 'rule', 'caller', 'req', 'balance'];

/** `cluster=hz, zone=a` as an object; a word without `=` is reported by its position. */
function pairs(text) {
  const found = {};
  for (const part of text.split(',').map((part) => part.trim()).filter(Boolean)) {
    const at = part.indexOf('=');
    if (at < 1) throw new Problem({ code: 'bad_value', detail: `\`${part}\` is not key=value` });
    found[part.slice(0, at).trim()] = part.slice(at + 1).trim();
  }
  return found;
}

/** A value of metadata on one line: sets are lists. */
const shown = (value) => (value !== null && typeof value === 'object' && !Array.isArray(value) ? writeExact(value)
  : Array.isArray(value) ? value.map(String).join(', ') : String(value));

export class Services {
  #asking = null;
  #remembered = '';
  #picks = null;

  constructor(root, frame) {
    this.frame = frame;
    this.service = null;
    /** What the table shows, as text; null is nothing. */
    this.shownTable = null;
    this.#build(root);
    this.poller = new Poller({
      every: 3_000,
      load: () => this.#load(),
      done: () => {},
      // The frame has its own poller and says so.
      failed: (problem) => this.#failed(problem),
    });
  }

  #build(root) {
    const text = (attributes) => h('input', { type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', class: 'code', ...attributes });
    this.list = h('ul', { class: 'service-list' });
    this.caret = h('pre', { class: 'caret', hidden: true, 'aria-hidden': 'true' });
    this.error = h('p', { class: 'field-error', id: 's-rule-error', hidden: true });
    this.rule = text({ id: 's-rule', placeholder: 'version >= 2.10 && env == prod', 'aria-describedby': 's-rule-error', enterkeyhint: 'go' });
    this.caller = text({ id: 's-caller', placeholder: 'cluster=hz, zone=hz-a' });
    this.req = text({ id: 's-req', placeholder: 'flag=canary' });
    this.balance = h('select', { id: 's-balance' }, BALANCERS.map((name) => h('option', { value: name === BALANCERS[0] ? '' : name }, name)));
    this.n = h('input', { type: 'number', id: 's-n', min: '1', max: '10000', value: '1000' });
    this.title = h('h2');
    this.state = h('span');
    this.summary = h('p', { class: 'summary' });
    this.stages = h('div');
    this.table = h('div', { class: 'scroll', role: 'region', 'aria-label': 'instances', tabindex: '0' });
    this.picked = h('div');
    this.pickButton = h('button', { type: 'button', onclick: () => this.#pick() }, 'Pick');
    this.form = h('form', { class: 'rule-form', 'aria-label': 'Rule', novalidate: true },
      h('div', { class: 'field' }, h('label', { for: 's-rule' }, 'rule'), this.rule, this.caret, this.error),
      h('div', { class: 'triple' },
        h('div', { class: 'field' }, h('label', { for: 's-caller' }, 'caller ($caller.key)'), this.caller),
        h('div', { class: 'field' }, h('label', { for: 's-req' }, 'request ($req.key)'), this.req),
        h('div', { class: 'field' }, h('label', { for: 's-balance' }, 'balancer'), this.balance)),
      h('div', { class: 'buttons' }, h('button', { type: 'submit', class: 'primary' }, 'Explain'),
        h('label', { for: 's-n', class: 'inline' }, 'picks'), this.n, this.pickButton));
    this.detail = h('section', { class: 'panel', 'aria-label': 'Service' },
      h('div', { class: 'panel-head' }, this.title, this.state), this.form, this.summary, this.stages, this.table, this.picked);
    this.note = h('div');
    this.split = h('div', { class: 'split services' },
      h('nav', { class: 'panel', 'aria-label': 'Services' }, h('h2', {}, 'Services'), this.list), h('div', { class: 'stack' }, this.detail));
    root.append(h('h1', { class: 'sr-only' }, 'Services'), this.note, this.split);

    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#explain(true);
    });
    const soon = debounced(150, () => {
      this.#address();
      this.#explain(true);
    });
    this.form.addEventListener('input', (event) => {
      if (event.target === this.n) return;
      this.#picks = null;
      this.picked.replaceChildren();
      soon();
    });
  }

  // --- what the frame calls ---

  async show(words) {
    if (words === null) this.frame.address('services', this.#remembered);
    else if (String(words) !== this.#remembered || this.service === null) {
      for (const [word, input] of [['rule', this.rule], ['caller', this.caller], ['req', this.req], ['balance', this.balance]]) {
        input.value = words.get(word) ?? '';
      }
      if (this.service !== words.get('service')) this.shownTable = null;
      this.service = words.get('service');
      this.#remembered = String(words);
      this.#picks = null;
      this.picked.replaceChildren();
      if (this.service !== null) this.#explain(false);
    }
    this.poller.start();
  }

  hide() {
    this.poller.stop();
  }

  focusQuery() {
    this.rule.focus();
    this.rule.select();
  }

  back() {
    if (!byId('services').hidden) this.poller.now();
  }

  #address(step = false) {
    const values = { service: this.service, rule: this.rule.value, caller: this.caller.value, req: this.req.value, balance: this.balance.value };
    const words = new URLSearchParams();
    for (const word of WORDS) if (values[word]) words.set(word, values[word]);
    this.#remembered = String(words);
    this.frame.address('services', this.#remembered, step);
  }

  // --- the list ---

  async #load() {
    const { body } = await get('v1/services');
    if (body.services.length === 0) {
      this.#nothing();
      return;
    }
    this.note.replaceChildren();
    this.split.hidden = false;
    this.#showList(body.services);
    if (this.service === null && body.services.length > 0) {
      // The most interesting one to begin with is one of the user's own, not the one that metaroute itself uses.
      this.service = (body.services.find((service) => service.name === 'orders')
        ?? body.services.find((service) => service.name !== 'metaserver') ?? body.services[0]).name;
    }
    this.#markCurrent();
    if (this.service !== null) await this.#explain(false);
  }

  #failed(problem) {
    if (problem.status === 404) this.#nothing();
  }

  #nothing() {
    this.split.hidden = true;
    this.note.replaceChildren(h('div', { class: 'panel' }, h('h2', {}, 'No services here'),
      h('p', {}, 'There is no service in the registry of this process. A router has one when its configuration names a ',
        h('code', {}, 'registry'), '; ', h('code', {}, 'metaroute route explain --from REGISTRY'),
        ' explains against any registry from a terminal.')));
  }

  #showList(services) {
    const text = JSON.stringify(services);
    if (this.shownList === text) return;
    this.shownList = text;
    this.services = services;
    const focused = document.activeElement?.dataset?.service;
    this.list.replaceChildren(...services.map((service) => {
      const [tone, drawing, words] = STATES[service.state] ?? ['bad', 'ask', service.state];
      const choose = () => {
        this.service = service.name;
        this.shownTable = null;
        this.#picks = null;
        this.picked.replaceChildren();
        this.#address(true);
        this.#markCurrent();
        this.#explain(true);
      };
      return h('li', {}, h('button', { type: 'button', 'data-service': service.name, onclick: choose },
        h('span', { class: 'service-name' }, service.name),
        h('span', { class: 'service-about' }, chip(tone, drawing, words),
          h('span', { class: 'muted' }, `${count(service.usable)} of ${count(service.instances)} usable`))));
    }));
    if (focused) this.list.querySelector(`[data-service="${CSS.escape(focused)}"]`)?.focus();
  }

  #markCurrent() {
    for (const button of this.list.querySelectorAll('button')) {
      if (button.dataset.service === this.service) button.setAttribute('aria-current', 'true');
      else button.removeAttribute('aria-current');
    }
    const known = this.services?.find((service) => service.name === this.service);
    put(this.title, this.service ?? '');
    const state = known?.state ?? '';
    if (this.shownState !== state) {
      this.shownState = state;
      this.state.replaceChildren(known ? chip(...(STATES[state] ?? ['bad', 'ask', state])) : '');
    }
  }

  // --- the rule ---

  #decision() {
    const body = {};
    if (this.rule.value.trim()) body.rule = this.rule.value;
    const caller = pairs(this.caller.value);
    const req = pairs(this.req.value);
    if (Object.keys(caller).length > 0) body.caller = caller;
    if (Object.keys(req).length > 0) body.req = req;
    if (this.balance.value) body.balance = this.balance.value;
    return body;
  }

  /** Asks again; `aloud` tells screen readers what came of it. */
  async #explain(aloud) {
    this.#asking?.abort();
    const asking = new AbortController();
    this.#asking = asking;
    try {
      const { body } = await post(`v1/services/${encodeURIComponent(this.service)}/explain`, this.#decision(), { cancel: asking.signal });
      if (this.#asking !== asking) return;
      this.#clearError();
      this.#show(body);
      if (aloud) this.frame.say(this.summary.textContent);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (this.#asking !== asking || problem.code === 'cancelled') return;
      this.#refused(problem, aloud);
    }
  }

  #refused(problem, aloud) {
    // The frame shows a server that is gone.
    if (!problem.answered && problem.code !== 'bad_value') return;
    if (problem.code === 'not_found') {
      this.#clearError();
      this.shownTable = null;
      this.table.replaceChildren();
      this.stages.replaceChildren();
      refill(this.summary, chip('bad', 'bad', problem.message));
      return;
    }
    const column = problem.code === 'bad_expression' ? Number(problem.at?.column ?? 0) : 0;
    mark(this.rule, this.caret, column > 0 ? column : null);
    const expected = problem.expected?.length > 0 ? `; expected ${problem.expected.join(', ')}` : '';
    const words = `${column > 0 ? `column ${column}: ` : ''}${problem.message}${expected}${problem.hint ? ` (${problem.hint})` : ''}`;
    put(this.error, words);
    this.error.hidden = false;
    // What stands below is the answer to an earlier rule.
    this.table.classList.add('old');
    this.stages.classList.add('old');
    refill(this.summary, chip('bad', 'bad', 'this rule decides nothing'));
    if (aloud) this.frame.say(words);
    // A link with a broken rule still says who is there.
    if (this.shownTable === null) this.#withoutRule();
  }

  async #withoutRule() {
    try {
      const { body } = await post(`v1/services/${encodeURIComponent(this.service)}/explain`, {});
      if (this.shownTable !== null) return;
      this.table.replaceChildren(this.#table(body.instances));
      this.shownTable = '';
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
    }
  }

  #clearError() {
    mark(this.rule, this.caret, null);
    this.error.hidden = true;
    put(this.error, '');
    this.table.classList.remove('old');
    this.stages.classList.remove('old');
  }

  #show(answer) {
    const kept = answer.instances.filter((instance) => instance.kept).length;
    const ruled = this.rule.value.trim() !== '';
    const words = answer.outcome === 'picked'
      ? `${ruled ? 'the rule leaves' : 'without a rule'} ${count(kept)} of ${plural(answer.instances.length, 'instance')} to pick from`
      : `nobody can be picked: ${answer.reason}`;
    refill(this.summary, answer.outcome === 'picked' ? chip('good', 'ok', words) : chip('bad', 'bad', words),
      answer.outcome === 'picked' && h('span', { class: 'muted' }, ` reason ${answer.reason}`));
    refill(this.stages, h('ol', { class: 'stages', 'aria-label': 'stages' }, answer.stages.map((stage) =>
      h('li', {}, h('b', {}, stage.name === 'rule:rule' ? 'rule' : stage.name.replace(/^rule:/, 'rule ')), h('span', {}, `${count(stage.in)} in, ${count(stage.out)} out, ${count(stage.usable)} usable`)))));
    const text = JSON.stringify([this.service, answer.instances]);
    if (this.shownTable === text) return;
    this.shownTable = text;
    const at = [this.table.scrollLeft, this.table.scrollTop];
    this.table.replaceChildren(this.#table(answer.instances));
    [this.table.scrollLeft, this.table.scrollTop] = at;
    if (this.#picks) this.#showPicks(answer);
    this.lastAnswer = answer;
  }

  #table(instances) {
    const columns = ['instance', 'because', 'share', 'cluster', 'zone', 'weight', 'metadata'];
    return h('table', { class: 'instances' },
      h('thead', {}, h('tr', {}, columns.map((name) => h('th', { scope: 'col', class: ['share', 'weight'].includes(name) ? 'num' : '' }, name)))),
      h('tbody', {}, instances.map((instance) => h('tr', { class: instance.kept ? 'kept' : 'dropped', 'data-id': instance.id },
        h('th', { scope: 'row' }, h('span', { class: 'instance-id' }, instance.id), h('code', {}, instance.address),
          !instance.healthy && chip('bad', 'bad', 'unhealthy'), !instance.enabled && chip('warn', 'drain', 'switched off')),
        h('td', { class: 'because' }, this.#because(instance)),
        h('td', { class: 'num' }, this.#share(Number(instance.probability))),
        h('td', {}, instance.cluster || '–'), h('td', {}, instance.zone || '–'),
        h('td', { class: 'num' }, String(instance.weight)),
        h('td', {}, h('ul', { class: 'metadata' }, Object.entries(instance.metadata).map(([key, value]) =>
          h('li', {}, h('span', { class: 'muted' }, `${key}=`), shown(value)))))))));
  }

  #because(instance) {
    const has = instance.value === null || instance.value === undefined ? ''
      : `${instance.stage === 'usable' ? 'is' : 'has'} ${shown(instance.value)}`;
    const clause = instance.clause ? h('code', {}, instance.clause) : null;
    // A rule from the box has no name of its own.
    const stage = instance.stage === 'rule:rule' ? 'rule' : instance.stage?.replace(/^rule:/, 'rule ');
    if (instance.kept) {
      return [chip('good', 'ok', 'kept'), h('span', { class: 'why' }, clause, clause && has ? ` – ${has}` : has)];
    }
    return [chip('bad', 'bad', 'dropped'), h('span', { class: 'why' }, h('span', { class: 'muted' }, `${stage}: `), clause, has && ` – ${has}`)];
  }

  #share(share) {
    const bar = h('span', { class: 'share-bar', 'aria-hidden': 'true' }, h('span', {}));
    bar.firstChild.style.width = `${share * 100}%`;
    return share === 0 ? '–' : [h('span', {}, percent(share)), bar];
  }

  // --- picking ---

  async #pick() {
    const n = Number(this.n.value);
    let decision;
    try {
      decision = this.#decision();
      const { body } = await post(`v1/services/${encodeURIComponent(this.service)}/pick`, { ...decision, n });
      this.#picks = body;
      this.#showPicks(this.lastAnswer);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.#picks = null;
      refill(this.picked, problemBox(problem));
    }
  }

  #showPicks(answer) {
    const { picks, reason } = this.#picks;
    const tally = new Map(answer.instances.map((instance) => [instance.id, 0]));
    for (const pick of picks) tally.set(pick.id, (tally.get(pick.id) ?? 0) + 1);
    const expected = new Map(answer.instances.map((instance) => [instance.id, Number(instance.probability)]));
    const highest = Math.max(0.01, ...[...tally].map(([, times]) => times / picks.length || 0), ...expected.values());
    const rows = [...tally].filter(([id, times]) => times > 0 || expected.get(id) > 0).sort((a, b) => b[1] - a[1]);
    refill(this.picked, h('section', { 'aria-label': 'Picks' },
      h('h3', {}, `${plural(picks.length, 'pick')}${reason ? `, then none: ${reason}` : ''}`),
      h('ul', { class: 'picks' }, rows.map(([id, times]) => {
        const share = picks.length === 0 ? 0 : times / picks.length;
        const bar = h('span', { class: 'pick-bar', 'aria-hidden': 'true' }, h('span', { class: 'got' }), h('span', { class: 'want' }));
        bar.children[0].style.width = `${(share / highest) * 100}%`;
        bar.children[1].style.left = `${((expected.get(id) ?? 0) / highest) * 100}%`;
        return h('li', {}, h('span', { class: 'instance-id' }, id), bar,
          h('span', { class: 'num' }, `${count(times)} = ${percent(share)}`), h('span', { class: 'muted' }, `expected ${percent(expected.get(id) ?? 0)}`));
      })),
      h('p', { class: 'muted small' }, 'The line in each bar is the exact share; hash balancers draw a key for each pick.')));
    this.frame.say(`${plural(picks.length, 'pick')} of ${plural(rows.length, 'instance')}`);
  }
}
