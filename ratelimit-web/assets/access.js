// @ts-check
// What is allowed, denied and banned.

import { api, query } from './api.js';
import { change, VERBS } from './change.js';
import { code, el, empty, fill, table } from './dom.js';
import { instant, link, number, tag, words } from './words.js';

const REFRESH_MS = 10_000;
/** Entries of each origin. */
const MOST = '100';

/** @param {any} of */
const by = (of) => of.by === 'configuration' ? [of.list, of.file].filter(Boolean).join(', ') + (of.line ? `:${of.line}` : '') || 'the configuration'
  : of.by === 'ban' ? `rule ${of.rule}` : of.by === 'safety' ? 'safety' : of.user ?? 'a command';

export function access() {
  const body = el('div', null, empty('Reading …'));
  const field = el('input', { name: 'prefix', type: 'text', placeholder: '192.0.2.0/24', autocomplete: 'off', spellcheck: 'false' });
  const node = el('div', null, el('h1', null, 'Access list'),
    el('p', { class: 'faint' }, 'What is allowed, denied and banned, until when and why. The longer prefix decides.'),
    el('form', { class: 'filter', submit: (/** @type {any} */ event) => { event.preventDefault(); refresh(); } },
      el('label', null, 'Within, or around', field), el('button', { class: 'quiet' }, 'Filter'),
      el('button', { type: 'button', click: () => change('allow', '', refresh) }, 'Allow …'),
      el('button', { type: 'button', class: 'danger', click: () => change('deny', '', refresh) }, 'Deny …')), body);
  const undo = (/** @type {any} */ of) => {
    if (!['command', 'ban'].includes(of.by)) return '–';
    const what = of.state === 'exempt' ? 'unallow' : 'unblock';
    return el('button', { class: 'quiet', 'aria-label': `${VERBS[what].does} ${of.prefix}`, click: () => change(what, of.prefix, refresh) }, VERBS[what].does);
  };
  let asked = 0;
  async function refresh() {
    asked = Date.now();
    const text = field.value.trim();
    const prefix = text && (text.includes('/') ? text : `${text}/${text.includes(':') ? 128 : 32}`);
    try {
      const of = await api(query('/api/v1/list', { most: MOST, prefix }));
      fill(body, of.entries.length ? table(['Prefix', 'State', 'Until', 'By', 'Reason', 'Change'], [], of.entries.map((/** @type {any} */ one) => [
        link(one.prefix), [tag(one.state), one.overridden_by && ` overridden by ${one.overridden_by.prefix}`], one.until ? instant(one.until) : 'permanent', by(one), one.reason ?? one.comment ?? '–', undo(one)]),
      'Access list', of.entries.map((/** @type {any} */ one) => `${one.by} ${one.state} ${one.prefix} ${one.rule ?? one.line ?? ''}`))
        : empty(prefix ? 'Nothing is entered within or around this prefix.' : 'Nothing is allowed, denied or banned. ', !prefix && ['Allow your own address first: ', code('sudo ratelimitd allow ADDRESS'), ', or the button above.']),
      (of.omitted ?? []).map((/** @type {any} */ one) => el('p', { class: 'faint' }, `${number(one.count)} more of ${one.of}: filter by prefix, or `, code('ratelimitd list --all'))));
    } catch (error) {
      fill(body, empty(words(error)));
    }
  }
  refresh();
  // The list may be long, and changes seldom.
  return { node, update: () => { if (Date.now() - asked >= REFRESH_MS) refresh(); } };
}
