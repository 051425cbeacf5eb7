// @ts-check
// One source: what decides, its windows bucket by bucket, and its story.

import { api, query } from './api.js';
import { change } from './change.js';
import { bar } from './chart.js';
import { code, el, empty, fill, pairs, table } from './dom.js';
import { counted, duration, instant, lossWords, number, portWords, words } from './words.js';

/** @param {any} of */
function verdict(of) {
  const guarded = of.reason === 'guard' || of.would === 'guard';
  const refuses = of.refuses ?? 'packets';
  const does = of.verdict === 'drop' ? guarded ? `drops ${refuses}; its requests pass` : `drops ${refuses}`
    : of.reason === 'dry_run' ? `passes all packets, would drop ${refuses}`
      : of.reason === 'exempt' ? 'passes all packets, uncounted' : 'passes, within every limit';
  const rows = [];
  if (of.reason !== 'within_limit') {
    const wait = of.never || of.reason === 'exempt' ? '' : `Passes again in ${duration(Math.ceil(of.retry_after_seconds))}`;
    rows.push(['decided by', of.decided_by]);
    if (of.would_be_decided_by) rows.push(['otherwise', of.would_be_decided_by]);
    rows.push([of.reason === 'dry_run' ? 'would end' : 'until', of.until ? [instant(of.until), wait && `. ${wait}`] : 'permanent']);
    if (of.undo) rows.push(['undo', code(of.undo)]);
    rows.push(['reason', code(of.would ?? of.reason)]);
  }
  return el('div', { class: 'card' },
    el('h3', { class: of.verdict === 'drop' && 'bad' }, `Rule ${of.rule} on ${portWords(of.ports)}${of.to?.length ? ` of ${of.to.join(', ')}` : ''}: ${does}`),
    rows.length > 0 && pairs(rows));
}

/** A limit, bucket by bucket. @param {any} of */
function windowOf(of) {
  /** @type {Record<string, string>} */
  const budgets = { verified: ' of established connections', unverified: ' of unverified traffic' };
  const most = Math.max(1, ...of.buckets.map((/** @type {any} */ one) => one.count));
  const others = of.used_elsewhere ?? 0;
  const told = of.told_seconds_ago === undefined ? '' : `, reported ${of.told_seconds_ago.toFixed(1)} s ago`;
  const elsewhere = of.used_elsewhere === undefined ? '' : ` (${number(of.used)} here, ${number(others)} elsewhere${told})`;
  return el('div', { class: 'card' },
    el('h3', null, `Rule ${of.rule}${of.mode === 'enforce' ? '' : ', dry run'}: ${number(of.used + others)} of ${number(of.limit)} ${of.unit}${budgets[of.budget] ?? ''} used in ${duration(of.window_seconds)}${elsewhere}`),
    bar(of.used + others, of.limit, of.over),
    el('p', { class: 'faint' }, `${number(of.remaining)} left; ${counted(of.refused, 'packet')} refused`),
    of.buckets.length > 0 && el('details', { open: of.used > 0 }, el('summary', null, `Buckets of ${duration(of.bucket_seconds)}, from (UTC)`),
      el('div', { class: 'bars' }, of.buckets.map((/** @type {any} */ one) =>
        [el('span', { class: 'faint' }, one.start.slice(11, 19)), bar(one.count, most, false), el('span', { class: 'num' }, number(one.count))]))));
}

/** @param {string} began @param {string} ended */
const lasted = (began, ended) => duration(Math.max(0, Math.round((Date.parse(ended) - Date.parse(began)) / 1000)));

/** Episodes and acts, as `ratelimitd history` has them. @param {any} of */
function story(of) {
  const { episodes, acts } = of;
  return [
    el('h2', null, 'Episodes'), lossWords(of.losses),
    episodes.length ? table(['Began', 'Lasted', 'Packets', 'Peak', 'Reason', 'Rule and limit'], [2, 3], episodes.slice(0, 50).map((/** @type {any} */ one) => [
      instant(one.began), one.ended ? lasted(one.began, one.ended) : 'ongoing', number(one.packets), number(one.peak),
      [code(one.reason), one.would && ' nothing was dropped'], `${one.source === of.source ? '' : `${one.source}: `}${one.rule} ${one.limit}`]), 'Episodes')
      : empty(of.losses?.length ? 'No refusal is remembered, and the history is not complete.' : 'It was never refused, as far as the history goes.'),
    episodes.length > 50 && el('p', { class: 'faint' }, `${of.more ? 'At least ' : ''}${counted(episodes.length - 50, 'more episode')}: `, code(`ratelimitd history ${of.source} --json`)),
    el('h2', null, 'What was done about it'),
    acts.length ? table(['Done', 'What', 'Of', 'By', 'Why'], [], acts.slice(0, 20).map((/** @type {any} */ one) => [
      instant(one.time), one.what, el('span', { class: 'mono' }, one.source ?? '–'), one.by ?? '–', one.reason ?? one.detail]), 'What was done about it')
      : empty('Nobody has allowed, denied or unblocked it. The buttons above do, and this keeps who did it and why.')];
}

/** @param {string} ip */
export function source(ip) {
  const [now, past] = [el('div', null, empty('Reading …')), el('div')];
  const act = (/** @type {string} */ what) => () => change(what, ip, refresh);
  const node = el('div', null, el('h1', { class: 'mono' }, ip),
    el('div', { class: 'buttons' },
      el('button', { id: 'unblock', click: act('unblock') }, 'Unblock'),
      el('button', { class: 'quiet', click: act('allow') }, 'Allow …'),
      el('button', { class: 'danger', click: act('deny') }, 'Deny …')), now, past);
  let asked = 0;
  async function tell() {
    asked = Date.now();
    try {
      fill(past, story(await api(query('/api/v1/history', { prefix: ip }))));
    } catch (error) {
      fill(past, el('h2', null, 'History'), empty(words(error), '.'));
    }
  }
  async function look() {
    try {
      const of = await api(`/api/v1/check/${encodeURIComponent(ip)}`);
      const on = (/** @type {string} */ is) => of.verdicts?.filter((/** @type {any} */ one) => one.verdict === is).map((/** @type {any} */ one) => one.ports).join(',');
      const [blocked, passes] = [on('drop'), on('pass')];
      fill(now,
        el('p', { id: 'verdict', class: of.verdict === 'drop' ? 'bad' : 'good' }, !of.verdicts?.length ? 'Passes: no rule judges its packets.'
          : [blocked && `Blocked on ${portWords(blocked)}`, passes && `${blocked ? ' and passes' : 'Passes'} on ${portWords(passes)}`, '.']),
        of.source !== ip && el('p', { class: 'faint' }, 'This address belongs to the source ', code(of.source), ', which counts as one client.'),
        !of.remembered && el('p', { class: 'faint' }, 'No recent traffic from this address.'),
        el('p', null, el('a', { href: `#/events/${ip}` }, 'Its events, live')),
        (of.verdicts ?? []).map(verdict),
        of.limits.length > 0 && el('h2', null, 'Windows'), el('div', { class: 'windows' }, of.limits.map(windowOf)),
        (of.guard ?? []).map((/** @type {any} */ one) => el('p', { class: 'card' }, `Guard of rule ${one.rule}: ${number(one.connections.used)} of ${number(one.connections.limit)} connections that ask nothing, ${number(one.segments.used)} of ${number(one.segments.limit)} segments that begin no request${one.datagrams ? `, ${number(one.datagrams.used)} of ${number(one.datagrams.limit)} datagrams of QUIC that are no request` : ''} used in ${duration(one.window_seconds)}`)),
        of.shadow_limits?.length > 0 && el('h2', null, 'Shadow limits, never enforced'),
        el('div', { class: 'windows' }, (of.shadow_limits ?? []).map(windowOf)));
    } catch (error) {
      fill(now, empty(words(error), '. Write an address, as in ', code('198.51.100.7'), ' or ', code('2001:db8::7'), '.'));
    }
  }
  function refresh() {
    look();
    tell();
  }
  refresh();
  // What is over is written every second; that it is over can wait.
  return { node, update: () => { look(); if (Date.now() - asked > 10_000) tell(); } };
}
