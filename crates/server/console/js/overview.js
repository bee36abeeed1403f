// Overview: groups, their slots, shards and copies, as they are now.
//
// Every element is made once and then changed in place: a page that is rebuilt every two seconds cannot be read with a
// screen reader, and nothing on it can be selected.

import { bytes, chip, count, facts, family, h, icon, percent, plural, put } from './dom.js';
import { colourOf, sizeOf, slotBar } from './slots.js';

/** What a shard's state looks like and means. */
const STATES = {
  LOADING: ['busy', 'wait', 'filling itself; answers nothing yet'],
  CATCHING_UP: ['busy', 'follow', 'full, applying what changed meanwhile'],
  READY: ['good', 'ok', 'answers'],
  DRAINING: ['warn', 'drain', 'finishes what it has begun, takes nothing new'],
  FAILED: ['bad', 'bad', 'broken; somebody has to look'],
  UNKNOWN: ['bad', 'ask', 'no copy is known'],
};

/** A state as a chip that can change. */
class State {
  constructor() {
    this.node = h('span', { class: 'chip' }, icon('ask'), h('span'));
  }

  set(name) {
    if (this.name === name) return;
    this.name = name;
    const [tone, drawing, meaning] = STATES[name] ?? STATES.UNKNOWN;
    this.node.className = `chip ${tone}`;
    this.node.title = meaning;
    this.node.replaceChildren(icon(drawing), h('span', {}, name.replace('_', ' ')));
  }
}

/** What the gate in front of a store's writes says, in words: `Open`, `Slow(40ms)`, `Closed(L0Runs(12))`. */
export function gateWords(gate) {
  if (gate === 'Open') return ['good', 'writes flow'];
  const [, kind, inner] = /^(\w+)\((.*)\)$/.exec(gate) ?? [null, gate, ''];
  if (kind === 'Slow') return ['warn', `writes slowed by ${inner} per MiB`];
  return ['bad', `writes wait${inner ? `: ${inner}` : ''}`];
}

class ShardCard {
  constructor(shard, index) {
    this.state = new State();
    this.rows = h('span', { class: 'big' });
    this.rowsUnit = h('span', { class: 'muted' });
    this.slots = h('dd');
    this.l0 = h('dd');
    this.disk = h('dd');
    this.work = h('dd');
    this.note = h('p', { class: 'note', hidden: true });
    this.progress = h('progress', { max: 1000, hidden: true, 'aria-label': `${shard.shard} loaded` });
    this.copies = h('ul', { class: 'copies' });
    const row = (name, value) => h('div', {}, h('dt', {}, name), value);
    this.node = h('article', { class: `card ${colourOf(index)}`, 'aria-label': `shard ${shard.group}/${shard.shard}` },
      h('div', { class: 'card-head' },
        h('h3', {}, h('span', { class: 'swatch', 'aria-hidden': 'true' }), shard.shard), this.state.node),
      h('p', { class: 'rows' }, this.rows, ' ', this.rowsUnit),
      this.progress, this.note,
      h('dl', { class: 'facts' }, row('slots', this.slots), row('L0 runs', this.l0), row('on disk', this.disk),
        row('working', this.work)),
      h('h4', {}, 'copies'), this.copies);
  }

  render(shard, group) {
    const store = shard.store;
    // With every copy gone there is no state to speak of.
    this.state.set(shard.state ?? 'UNKNOWN');
    put(this.rows, store ? count(Object.values(store.rows).reduce((sum, rows) => sum + BigInt(String(rows)), 0n)) : '–');
    put(this.rowsUnit, store ? 'rows' : 'rows are counted where the shard runs');
    put(this.slots, `${count(shard.slots)} (${percent(shard.slots / group.slots)})`);
    this.#store(store);
    const loading = shard.loaded_permille !== undefined && shard.state !== 'READY';
    this.progress.hidden = !loading;
    if (loading) this.progress.value = Number(shard.loaded_permille);
    this.note.hidden = !shard.reason;
    put(this.note, shard.reason ?? '');
    this.#copies(shard.replicas);
  }

  #store(store) {
    if (!store) {
      for (const fact of [this.l0, this.disk, this.work]) put(fact, '–');
      return;
    }
    const [tone, words] = gateWords(store.gate);
    const l0 = JSON.stringify([store.l0_runs, store.gate]);
    if (this.shownL0 !== l0) {
      this.shownL0 = l0;
      this.l0.replaceChildren(`${count(store.l0_runs)} `, chip(tone, tone === 'good' ? 'ok' : 'warn', words));
    }
    put(this.disk, `${bytes(store.table_bytes)} + ${bytes(store.journal_bytes)} journal`);
    const work = [
      [store.in_flight, 'request'], [store.write_queue, 'write'], [store.pending_flushes, 'flush', 'flushes'],
      [store.running_compactions, 'compaction'],
    ].filter(([number]) => Number(number) > 0).map((words) => plural(...words));
    put(this.work, work.join(', ') || 'idle');
  }

  #copies(replicas) {
    const text = JSON.stringify(replicas);
    if (this.shownCopies === text) return;
    this.shownCopies = text;
    this.copies.replaceChildren(...replicas.map((copy) => {
      const state = new State();
      state.set(copy.state ?? 'UNKNOWN');
      return h('li', {}, state.node, h('code', {}, copy.address), copy.zone && h('span', { class: 'muted' }, `zone ${copy.zone}`));
    }));
    if (replicas.length === 0) {
      this.copies.append(h('li', {}, chip('bad', 'bad', 'none'), h('span', {}, 'nobody is registered for this shard')));
    }
  }
}

class GroupPanel {
  constructor(group) {
    this.cards = new Map();
    this.about = h('p', { class: 'muted' });
    this.bar = h('div');
    this.grid = h('div', { class: 'cards' });
    this.node = h('section', { class: 'panel', 'aria-label': `group ${group.name}` },
      h('div', { class: 'panel-head' }, h('h2', {}, h('span', { class: 'kind' }, 'group'), ' ', group.name), this.about),
      this.bar, this.grid);
  }

  render(group, shards, buckets, epoch) {
    const rows = shards.every((shard) => shard.store)
      ? shards.flatMap((shard) => Object.values(shard.store.rows)).reduce((sum, n) => sum + BigInt(String(n)), 0n) : null;
    put(this.about, [
      plural(group.shards.length, 'shard'), plural(group.slots, 'slot'),
      `${percent(buckets / 4096)} of the tenants (${count(buckets)} of 4,096 buckets)`,
      rows !== null && plural(rows, 'row'),
    ].filter(Boolean).join(' · '));
    if (this.epoch !== epoch) {
      this.epoch = epoch;
      this.bar.replaceChildren(slotBar(group));
    }
    shards.forEach((shard, at) => {
      let card = this.cards.get(shard.shard);
      if (!card) {
        card = new ShardCard(shard, at);
        this.cards.set(shard.shard, card);
        this.grid.append(card.node);
      }
      card.render(shard, group);
    });
    for (const [name, card] of this.cards) {
      if (shards.some((shard) => shard.shard === name)) continue;
      card.node.remove();
      this.cards.delete(name);
    }
  }
}

export class Overview {
  constructor(root, frame) {
    this.frame = frame;
    this.groups = new Map();
    this.head = h('div', { class: 'figures' });
    this.trouble = h('div');
    this.panels = h('div', { class: 'stack' });
    root.append(h('h1', { class: 'sr-only' }, 'Overview'), this.trouble, this.head, this.panels);
    this.head.append(h('p', { class: 'muted' }, 'asking the server …'));
  }

  /** Nothing could be had; the frame says why. What is on the page stays and is shown as old. */
  failed() {
    if (this.frame.seen.stats === null) this.head.replaceChildren(h('p', { class: 'muted' }, 'nothing is known about this deployment yet'));
  }

  render() {
    const { stats, topology } = this.frame.seen;
    this.trouble.replaceChildren();
    if (stats.trouble) {
      this.trouble.append(h('p', { class: 'banner warn' }, icon('warn'),
        h('span', {}, `The stored topology is not in force: ${stats.trouble}`)));
    }
    this.#figures(stats, topology);
    for (const group of topology.groups) {
      let panel = this.groups.get(group.name);
      if (!panel) {
        panel = new GroupPanel(group);
        this.groups.set(group.name, panel);
        this.panels.append(panel.node);
      }
      const buckets = topology.tenants.buckets.filter((entry) => entry.group === group.name)
        .reduce((sum, entry) => sum + sizeOf(entry.buckets), 0);
      const shards = stats.shards.filter((shard) => shard.group === group.name);
      panel.render(group, shards, buckets, String(topology.epoch));
    }
    for (const [name, panel] of this.groups) {
      if (topology.groups.some((group) => group.name === name)) continue;
      panel.node.remove();
      this.groups.delete(name);
    }
  }

  #figures(stats, topology) {
    const ready = stats.shards.filter((shard) => shard.state === 'READY').length;
    const all = stats.shards.length;
    const slots = topology.groups.reduce((sum, group) => sum + Number(group.slots), 0);
    const figures = [
      ['shards ready', `${ready} of ${all}`, ready === all ? 'good' : 'bad'],
      ...(stats.rows ? Object.entries(stats.rows).map(([store, rows]) => [`rows in ${store}`, count(rows)]) : []),
      ['groups', count(stats.groups)],
      ['slots', count(slots)],
      ['topology epoch', String(stats.topology_epoch)],
      ['in flight, with this look', count(stats.in_flight)],
    ];
    const text = JSON.stringify(figures.map(([name]) => name));
    if (this.shownFigures !== text) {
      this.shownFigures = text;
      this.values = figures.map(() => h('span'));
      this.head.replaceChildren(facts(figures.map(([name], at) => [name, this.values[at]]), { class: 'figure-list' }));
    }
    figures.forEach(([, value, tone], at) => {
      put(this.values[at], value);
      family(this.values[at], 'tone-', `tone-${tone ?? 'plain'}`);
    });
  }
}
