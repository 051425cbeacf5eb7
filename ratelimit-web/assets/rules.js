// @ts-check
// Rules: what each does, how full its limits are, and what `suggest` says of them.

import { api, seen } from './api.js';
import { bar } from './chart.js';
import { code, el, empty, fill, pairs, table } from './dom.js';
import { counted, dropWords, duration, limitWords, modeWords, number, portWords, usedOf } from './words.js';

/** Rules that are unfolded, where there are no more. */
const UNFOLDED_MAX = 4;
/** Rules from which on they can be filtered. */
const FILTER_MIN = 8;

export function rules() {
  const place = el('div');
  /** @type {any} */
  let suggested = null;
  let wanted = '';
  api('/api/v1/suggest').then((of) => { suggested = of; update(); }, (error) => { suggested = { error: error.message, rules: [] }; update(); });
  const update = () => {
    const all = seen.stats.rules;
    const shown = all.filter((/** @type {any} */ of) => `${of.name} ${of.ports}`.includes(wanted));
    fill(place, el('h1', null, 'Rules'),
      el('p', { class: 'faint' }, 'The first rule that matches a packet judges it. Limits are changed in the configuration file, and ', code('sudo ratelimitd apply --confirm 60s'), ' puts it in force on trial.'),
      suggested?.error && el('p', { class: 'bad' }, suggested.error),
      all.length >= FILTER_MIN && el('label', { class: 'narrow' }, 'Name or port',
        el('input', { type: 'text', id: 'rule-filter', autocomplete: 'off', spellcheck: 'false', input: (/** @type {any} */ event) => { wanted = event.target.value.trim(); update(); } })),
      !all.length && empty('There is no rule, so no packet is limited. Write one into the file: ', code('[[rule]]'), ', with ', code('name'), ', ', code('ports'), ' and ', code('limits'), '.'),
      all.length > 0 && !shown.length && empty('No rule has this in its name or ports.'),
      shown.map((/** @type {any} */ of) => rule(of, suggested?.rules.find((/** @type {any} */ one) => one.name === of.name), all.length <= UNFOLDED_MAX)));
  };
  return { node: place, update };
}

/** @param {any} of @param {any} proposed @param {boolean} isOpen */
function rule(of, proposed, isOpen) {
  const drops = new Map();
  for (const one of seen.stats.interfaces.flatMap((/** @type {any} */ on) => on.counters)) {
    if (one.rule === of.name && one.verdict === 'drop' && one.packets) drops.set(one.reason, (drops.get(one.reason) ?? 0) + one.packets);
  }
  const why = [...drops].map(([reason, packets]) => `${number(packets)} ${dropWords(reason)}`).join(', ');
  const used = usedOf(of.used);
  const ofAll = used.map((one) => [one.unit[0].toUpperCase() + one.unit.slice(1), `${number(one.used)} in the last ${duration(one.window_seconds)}, from ${counted(one.sources, 'source')}`]);
  const lead = used.length ? `${number(used[0].used)} ${used[0].unit} in ${duration(used[0].window_seconds)}, ` : '';
  const rows = [...ofAll, ['Admitted', counted(of.admitted, 'packet')], ['Not counted', counted(of.not_counted, 'packet')],
    ['Dropped', counted(of.dropped, 'packet') + (why && `: ${why}`)], ['Would drop', counted(of.would_drop, 'packet')],
    ['Over limit', `${counted(of.sources_over_limit, 'source')} now`], ['Bans', `${number(of.banned)} now, ${number(of.bans)} begun`]];
  if (of.would_ban) rows.push(['Would ban', `${number(of.would_ban.bans)} since the start; ${counted(of.would_ban.sources, 'source')} would be banned now`]);
  if (of.new_sources) rows.push(['New sources', `at most ${number(of.new_sources.amount)} in ${duration(of.new_sources.window_seconds)}`]);
  const isEnforced = of.mode === 'enforce';
  return el('details', { class: 'card rule', open: isOpen, 'data-key': `rule ${of.name}` },
    el('summary', null, el('h2', null, of.name), ' ', el('span', { class: `tag ${isEnforced ? 'good' : 'faint'}` }, modeWords(of.mode)), ' ',
      el('span', { class: 'faint' }, `on ${portWords(of.ports)}; ${lead}${counted(of.admitted, 'packet')} admitted, ${number(isEnforced ? of.dropped : of.would_drop)} ${isEnforced ? 'dropped' : 'would be dropped'}`)),
    pairs(rows),
    of.limits.map((/** @type {any} */ limit, /** @type {number} */ i) => limitOf(limit, proposed?.limits[i])),
    (of.shadow_limits ?? []).map((/** @type {any} */ one) => [el('h3', null, `Shadow limit, never enforced: ${limitWords(one)}`),
      el('p', { class: 'faint' }, `It would have dropped ${counted(one.would_drop, 'packet')} of ${counted(one.sources, 'source')}.`)]),
    proposed?.paste && el('p', null, 'In the file: ', code(proposed.paste.file)));
}

/** A limit, how full sources' busiest windows were, and what `suggest` says. @param {import('./words.js').Limit} limit @param {any} of */
function limitOf(limit, of) {
  const observed = of?.observed;
  const busiest = observed?.busiest_window;
  const shares = busiest && [['half of them', busiest.median], ['90%', busiest.p90], ['99%', busiest.p99], ['all', busiest.max]];
  return el('div', null, el('h3', null, `Limit: ${limitWords(limit)}`),
    of && !busiest && el('p', { class: 'faint' }, 'No source was observed with this limit yet.'),
    busiest && [el('p', { class: 'faint' }, `What each of ${counted(observed.sources, 'source')} wanted in its busiest ${duration(limit.window_seconds)}, at most, and how full the limit is then:`),
      el('div', { class: 'bars' }, shares.map((/** @type {any} */ [name, value]) => [el('span', { class: 'faint' }, name), bar(value, limit.amount, value > limit.amount),
        el('span', { class: 'num' }, `${number(value)} (${number((value / Math.max(1, limit.amount)) * 100)}%)`)]))],
    of?.proposal && el('p', null, 'Suggested: ', code(of.proposal.limit), `, which would block ${counted(of.proposal.sources_blocked, 'source')}${of.proposal.provisional ? '; provisional, as little was observed' : ''}`),
    observed?.candidates?.length > 0 && el('details', null, el('summary', null, 'What other limits would block'),
      table(['Limit', 'Sources blocked', 'Share of sources', 'Share of what they wanted'], [1, 2, 3], observed.candidates.map((/** @type {any} */ one) => [
        code(one.limit), number(one.sources_blocked), share(one.sources_share), share(one.blocked_share)]), `What other limits than ${limitWords(limit)} would block`)),
    of?.notes?.length > 0 && el('details', null, el('summary', null, counted(of.notes.length, 'note')), el('ul', { class: 'faint' }, of.notes.map((/** @type {string} */ note) => el('li', null, note)))));
}

/** @param {number} of */
const share = (of) => `${(of * 100).toFixed(1)}%`;
