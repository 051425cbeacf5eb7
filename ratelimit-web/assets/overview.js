// @ts-check
// What wants attention, traffic, who is refused, and who is nearest to that.

import { api, query, seen } from './api.js';
import { bar } from './chart.js';
import { code, el, empty, fill, marked, table } from './dom.js';
import { traffic } from './traffic.js';
import { again, counted, duration, link, number, tag } from './words.js';

/** @typedef {import('./words.js').Top} Top */

/** Bans that are listed, of each rule. */
const BANS = '20';
/** How often they are asked for. */
const BANS_MS = 4000;

/** @param {Top[]} rows @param {string} caption */
function sources(rows, caption) {
  const isDry = (/** @type {string} */ name) => seen.stats.rules.some((/** @type {any} */ rule) => rule.name === name && rule.mode !== 'enforce');
  return table(['Source', 'State', 'Rule', 'Used', 'Dropped', 'Would drop', 'Passes again'], [4, 5], rows.map((of) => [
  link(of.source), [tag(of.state, of.reason, of.group), isDry(of.rule) && ' dry run'], of.rule,
  of.limit === undefined ? '–' : el('div', null, `${number(of.used)} of ${number(of.limit)} ${of.unit} in ${duration(of.window_seconds)}`, bar(of.used, of.limit, of.used >= of.limit)),
  of.limit === undefined ? '–' : number(of.dropped), of.limit === undefined ? '–' : number(of.would_drop), again(of)]), caption, rows.map((of) => `${of.rule} ${of.source}`));
}

/** @param {string} name @param {string} value @param {string} more */
const figure = (name, value, more) =>
  el('div', { class: 'card' }, el('div', { class: 'faint' }, name), el('div', { class: 'big' }, value), el('div', { class: 'faint' }, more));

export function overview() {
  const [above, middle, below] = [el('div'), el('div'), el('div')];
  const past = traffic();
  /** @type {any[]} */
  let bans = [];
  let asked = 0;
  // Statistics have the sources with an open window; a ban lasts longer than that.
  async function ask() {
    asked = Date.now();
    const told = await api(query('/api/v1/list', { most: BANS }));
    bans = told.entries.filter((/** @type {any} */ of) => of.by === 'ban' && of.decides);
    show();
  }
  const update = () => {
    // What does not come is asked for again.
    if (Date.now() - asked > BANS_MS) ask().catch(() => {});
    show();
  };
  const show = () => {
    const { stats } = seen;
    const now = seen.rates.at(-1);
    const told = /** @type {string[]} */ (stats.attention ?? []);
    const top = /** @type {Top[]} */ (stats.top ?? []);
    const listed = top.filter((of) => !['ok', 'exempt'].includes(of.state));
    const isListed = (/** @type {any} */ ban) => listed.some((of) => of.source === ban.prefix && of.rule === ban.rule);
    const seconds = (/** @type {any} */ ban) => (ban.until ? Math.max(0, (Date.parse(ban.until) - Date.parse(stats.time)) / 1000) : 0);
    const refused = [...listed, ...bans.filter((ban) => !isListed(ban)).slice(0, Number(BANS)).map((ban) => (/** @type {any} */ ({
      source: ban.prefix, rule: ban.rule, state: 'banned', retry_after_seconds: seconds(ban), never: !ban.until })))];
    const near = top.filter((of) => of.state === 'ok').slice(0, 10);
    const sum = (/** @type {any[]} */ all, /** @type {(one: any) => number} */ value) => all.reduce((so_far, one) => so_far + value(one), 0);
    const total = (/** @type {string} */ of) => sum(stats.interfaces, (one) => one.packets[of]);
    const blocked = sum(stats.rules, (rule) => (rule.mode === 'enforce' ? rule.sources_over_limit : 0));
    const more = Math.max(blocked, stats.sources.banned) - refused.length;
    fill(above,
      el('h1', null, 'Overview'),
      el('p', { class: 'faint' }, `ratelimitd ${stats.version}, up ${duration(Math.floor(stats.uptime_seconds))}: `,
        stats.mode === 'enforce' ? 'enforcing, what is over a limit is dropped' : 'dry run, nothing is dropped and what would be is counted',
        stats.fleet?.state === 'connected' && `; fleet ${stats.fleet.name ?? ''} connected, ${counted(stats.fleet.hosts, 'host')}`),
      told.length ? el('ul', { class: 'attention', 'aria-label': 'What wants attention' }, told.map((of) => el('li', null, marked(of))))
        : el('p', { class: 'good' }, '✓ Nothing wants attention.'),
      el('div', { class: 'cards' },
        figure('Passed', `${number(now?.passed ?? 0)}/s`, counted(total('passed'), 'packet')),
        figure('Dropped', `${number(now?.dropped ?? 0)}/s`, counted(total('dropped'), 'packet')),
        figure('Would drop', `${number(now?.would ?? 0)}/s`, `${counted(total('would_drop'), 'packet')}, in dry run`),
        figure('Sources', number(stats.sources.tracked), `${number(stats.sources.banned)} banned, ${number(blocked)} over a limit`)),
      el('h2', null, 'Traffic'));
    past.update();
    fill(middle,
      el('h2', null, 'Refused now'),
      refused.length ? sources(refused, 'Refused now')
        : empty('No source is refused now. A source appears here when it is over a limit, banned or denied.'),
      more > 0 && el('p', { class: 'faint' }, `${counted(more, 'more source')}: ${stats.sources.banned ? 'see the ' : 'only the worst are listed'}`,
        stats.sources.banned > 0 && el('a', { href: '#/access' }, 'access list')));
    fill(below,
      el('h2', null, 'Nearest to a limit'),
      near.length ? sources(near, 'Nearest to a limit')
        : empty('No source has used anything of a limit lately. Is traffic on this interface, and do the rules name its ports? See ',
          el('a', { href: '#/rules' }, 'the rules'), '.'),
      el('h2', null, 'Interfaces'),
      stats.interfaces.length ? table(['Interface', 'XDP', 'Packets/s', 'Received', 'Passed', 'Dropped', 'Would drop'], [2, 3, 4, 5, 6], stats.interfaces.map((/** @type {any} */ of) => [
        of.name, of.attached ? of.hook === 'tcx' ? 'by TCX, in the stack' : of.xdp_mode === 'native' ? 'native, in the driver' : 'generic, behind the driver' : 'not attached',
        of.per_second ? number(of.per_second.received) : '–',
        number(of.packets.received), number(of.packets.passed), number(of.packets.dropped), number(of.packets.would_drop)]), 'Interfaces')
        : empty('No interface is protected. Name one: ', code('sudo ratelimitd --iface eth0 --limit 1000/5m'), '.'));
  };
  return { node: el('div', null, above, past.node, middle, past.worst, below), update };
}
