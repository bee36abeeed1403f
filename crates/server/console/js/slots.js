// Slots: who owns them, which are asked for, and the bar that shows both.
//
// With `mod` placement neighbouring slots belong to different shards, so a bar in slot order would be grey noise. Slots are
// drawn by residue class (slot mod base_shards) instead: a fresh group is one run per shard, and what was moved later
// stands out in the class it came from.

import { count, h, plural } from './dom.js';

/** Number of owner colours in the style sheet; later shards begin again, and the label tells them apart. */
const COLOURS = 12;

/** Calls `each` for every number of a set written as `0-4095/3,7,9-12`. */
export function eachSlot(text, each) {
  if (!text) return;
  for (const part of text.split(',')) {
    const [, from, to = from, step = 1] = /^(\d+)(?:-(\d+)(?:\/(\d+))?)?$/.exec(part) ?? [];
    if (from === undefined) throw new Error(`not a set of slots: ${part}`);
    for (let slot = Number(from); slot <= Number(to); slot += Number(step)) each(slot);
  }
}

/** How many numbers the set has. */
export function sizeOf(text) {
  let size = 0;
  eachSlot(text, () => { size += 1; });
  return size;
}

/** The owner of every slot of a group of the topology document, as the index of a shard; -1 is nobody. */
export function ownersOf(group) {
  const owners = new Int32Array(group.slots).fill(-1);
  const index = new Map(group.shards.map((shard, at) => [shard.name, at]));
  for (const entry of group.owners) eachSlot(entry.slots, (slot) => { owners[slot] = index.get(entry.shard) ?? -1; });
  return owners;
}

/** The class that colours the shard with this index. */
export const colourOf = (index) => (index < 0 ? 'o-none' : `o${index % COLOURS}`);

/** Runs of slots with the same owner and the same light, in drawing order. */
function runsOf(group, owners, lights) {
  const classes = group.base_shards || 1;
  const perClass = Math.ceil(group.slots / classes);
  const runs = [];
  for (let residue = 0; residue < classes; residue += 1) {
    for (let turn = 0; turn < perClass; turn += 1) {
      const slot = turn * classes + residue;
      if (slot >= group.slots) continue;
      const light = lights ? lights[slot] : 'all';
      const last = runs.at(-1);
      if (last && last.owner === owners[slot] && last.light === light && last.residue === residue) last.length += 1;
      else runs.push({ owner: owners[slot], light, residue, length: 1 });
    }
  }
  return runs;
}

/**
 * The bar of a group. `asked` maps shard names to what is asked of them, `{ slots: TEXT, missing: REASON | null }`;
 * without it nobody asks and every slot has its colour.
 */
export function slotBar(group, asked) {
  const owners = ownersOf(group);
  let lights = null;
  const words = [];
  if (asked) {
    lights = new Array(group.slots).fill('off');
    for (const [name, { slots, missing }] of asked) {
      eachSlot(slots, (slot) => { lights[slot] = missing ? 'missing' : 'lit'; });
      words.push(`${name} ${plural(sizeOf(slots), 'slot')}${missing ? ` missing: ${missing}` : ''}`);
    }
  } else {
    group.shards.forEach((shard, at) => {
      words.push(`${shard.name} ${plural(owners.reduce((sum, owner) => sum + (owner === at), 0), 'slot')}`);
    });
  }
  const label = `${group.name}: ${asked ? `asks ${words.join(', ') || 'nobody'} of ` : `${words.join(', ')} of `}${count(group.slots)}`;
  const bar = h('div', { class: 'slotbar', role: 'img', 'aria-label': label });
  for (const run of runsOf(group, owners, lights)) {
    const name = group.shards[run.owner]?.name ?? 'nobody';
    const segment = h('span', { class: `seg ${colourOf(run.owner)} ${run.light}`, title: `${name}: ${plural(run.length, 'slot')}` },
      h('span', { class: 'seg-name' }, name));
    segment.style.flexGrow = run.length;
    // A name in a sliver would only be cut off.
    if (run.length / group.slots < 0.03) segment.classList.add('sliver');
    bar.append(segment);
  }
  return bar;
}
