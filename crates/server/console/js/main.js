// The frame: tabs, addresses, the connection, and the keys that work everywhere.
//
// The address after `#` carries the tab and what was asked there, so that a link shows a colleague the same thing.

import { get } from './api.js';
import { age, byId, family, h, icon, put } from './dom.js';
import { Overview } from './overview.js';
import { Poller } from './poller.js';
import { Query } from './query.js';
import { Services } from './services.js';

const TABS = ['overview', 'query', 'services'];

/** Says something to screen readers without moving anything. */
function say(text) {
  const said = byId('said');
  said.textContent = '';
  said.textContent = text;
}

/** The deployment as last seen: the one thing that all tabs look at. */
const seen = { stats: null, topology: null };

const frame = {
  say,
  seen,
  /** A view tells what its address is now; `step` makes it a place to go back to. */
  address(tab, words, step = false) {
    if (tab !== current) return;
    const text = String(words);
    const hash = `#/${tab}${text && `?${text}`}`;
    if (hash === location.hash) return;
    // A link may have been written with other escapes; that is no step.
    const [here, asked = ''] = location.hash.split('?');
    const same = here === `#/${tab}` && String(new URLSearchParams(asked)) === text;
    history[step && !same ? 'pushState' : 'replaceState'](null, '', hash);
  },
  /** Looks at once, because somebody has just got no answer. */
  look: () => poller.now(),
};

const views = {
  overview: new Overview(byId('overview'), frame),
  query: new Query(byId('query'), frame),
  services: new Services(byId('services'), frame),
};

let current = null;

function show(tab, words) {
  const first = current === null;
  if (current !== tab) {
    if (!first) views[current].hide?.();
    current = tab;
    for (const name of TABS) {
      const button = byId(`tab-${name}`);
      button.setAttribute('aria-selected', String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
      byId(name).hidden = name !== tab;
    }
    document.title = `${byId(`tab-${tab}`).textContent} · metaroute console`;
  }
  views[tab].show?.(words);
}

/** `#/query?user_id=7` → the tab and its words; anything else is the overview. */
function route() {
  const [, tab, words = ''] = /^#\/([a-z]+)(?:\?(.*))?$/.exec(location.hash) ?? [];
  show(TABS.includes(tab) ? tab : 'overview', new URLSearchParams(words));
}

function choose(tab) {
  if (tab === current) return;
  history.pushState(null, '', `#/${tab}`);
  // A tab remembers what was in it and puts it into the address again.
  show(tab, null);
}

byId('tab-overview').parentElement.addEventListener('keydown', (event) => {
  const at = TABS.indexOf(current);
  const to = {
    ArrowRight: TABS[(at + 1) % TABS.length],
    ArrowLeft: TABS[(at + TABS.length - 1) % TABS.length],
    Home: TABS[0],
    End: TABS.at(-1),
  }[event.key];
  if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  choose(to);
  byId(`tab-${to}`).focus();
});
for (const tab of TABS) byId(`tab-${tab}`).addEventListener('click', () => choose(tab));

// The address of the skip link would look like a tab.
byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  byId('main').focus();
});

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') views[current].cancel?.();
  const typing = event.target.closest?.('input, textarea, select, [contenteditable]');
  if (event.key === '/' && !typing) {
    event.preventDefault();
    if (!views[current].focusQuery) choose('query');
    views[current].focusQuery();
  }
});
window.addEventListener('hashchange', route);

// The connection. One poller looks at the deployment for all tabs.

let trouble = null;

async function look() {
  const { body: stats } = await get('v1/stats');
  // The topology is long and changes rarely; its epoch is in the statistics.
  if (String(seen.topology?.epoch) !== String(stats.topology_epoch)) {
    seen.topology = (await get('v1/topology')).body;
  }
  seen.stats = stats;
}

const poller = new Poller({
  every: 2_000,
  load: look,
  done() {
    if (trouble) {
      say('the server answers again');
      for (const view of Object.values(views)) view.back?.();
    }
    trouble = null;
    views.overview.render();
    views.query.deployment();
    connection();
  },
  failed(problem) {
    views.overview.failed();
    trouble = problem;
    connection();
  },
});

const bannerText = h('span');
const bannerWhen = h('span', { class: 'muted', 'aria-hidden': 'true' });
const retry = h('button', { type: 'button', onclick: () => poller.now() }, 'Try now');
const banner = h('div', { class: 'banner' }, icon('bad'), bannerText, bannerWhen, retry);

/** Shows how fresh everything is; called on every answer and once a second. */
function connection() {
  const link = byId('link');
  const since = poller.seen === null ? null : age(Date.now() - poller.seen);
  const [tone, drawing, text] = trouble
    ? ['bad', 'bad', trouble.answered ? 'in trouble' : 'no answer']
    : seen.stats === null ? ['busy', 'wait', 'asking']
      : seen.stats.ready ? ['good', 'ok', 'ready'] : ['warn', 'wait', 'not ready'];
  if (!link.firstChild) link.append(h('span', { class: 'chip' }, icon('wait'), h('span')), h('span', { class: 'muted' }));
  const [state, when] = link.children;
  if (state.dataset.drawing !== drawing) {
    state.dataset.drawing = drawing;
    state.replaceChild(icon(drawing), state.firstChild);
  }
  for (const old of ['good', 'warn', 'bad', 'busy']) state.classList.toggle(old, old === tone);
  put(state.lastChild, text);
  put(when, since === null ? '' : `${since} ago`);
  family(document.body, 'link-', trouble ? 'link-lost' : 'link-live');

  const box = byId('banner');
  if (!trouble) {
    box.replaceChildren();
    return;
  }
  put(bannerText, trouble.answered
    ? `The server is in trouble: ${trouble.code}: ${trouble.message}`
    : `The server does not answer: ${trouble.message}`);
  const next = poller.due === null ? 'trying' : `next try in ${age(poller.due - Date.now())}`;
  put(bannerWhen, since === null ? next : `what you see is ${since} old · ${next}`);
  if (!banner.isConnected) box.append(banner);
}

setInterval(connection, 1_000);
connection();
route();
poller.start();
