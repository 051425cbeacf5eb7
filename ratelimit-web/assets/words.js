// @ts-check
// Numbers, times and names, as the commands of `ratelimitd` say them.

import { el } from './dom.js';

/** @typedef {{amount: number, window_seconds: number, unit: string, bucket_seconds: number, window: string}} Limit */
/** @typedef {{source: string, rule: string, unit: string, used: number, limit: number, window_seconds: number, dropped: number,
 *   would_drop: number, state: string, reason: string, group?: string, retry_after_seconds: number, never: boolean}} Top */

/** @param {number} of */
export const number = (of) => Math.round(of).toLocaleString('en-US');

/** For an axis: 1,200, 35k, 4.1M. @param {number} of */
export function short(of) {
  for (const [unit, size] of /** @type {[string, number][]} */ ([['G', 1e9], ['M', 1e6], ['k', 1e3]])) {
    if (of >= size * 10) return `${number(of / size)}${unit}`;
    if (of >= size && size > 1e3) return `${(of / size).toFixed(1)}${unit}`;
  }
  return number(of);
}

/** @param {number} of @param {string} one */
export const counted = (of, one) => `${number(of)} ${one}${of === 1 ? '' : 's'}`;

/** 5m, 1h30m, 12s. @param {number} seconds */
export function duration(seconds) {
  let rest = Math.round(seconds);
  if (seconds < 10 && rest !== seconds) return `${seconds.toFixed(1)}s`;
  let text = '';
  for (const [unit, length] of /** @type {[string, number][]} */ ([['d', 86400], ['h', 3600], ['m', 60], ['s', 1]])) {
    if (rest >= length) text += Math.floor(rest / length) + unit;
    rest %= length;
  }
  return text || '0s';
}

/** @param {string} time */
export const instant = (time) => `${time.slice(0, 19).replace('T', ' ')} UTC`;

/** @param {Limit} of */
export const limitWords = (of) => `${number(of.amount)} ${of.unit} in ${duration(of.window_seconds)}`;

/** Says when events were lost, newest first; nothing where none were. @param {any[] | undefined} losses */
export const lossWords = (losses) => !losses?.length ? null : el('p', { class: 'bad' },
  `NOT COMPLETE: events were lost from ${losses.slice(0, 3).map((of) => `${instant(of.began)} to ${instant(of.ended)} (${number(of.events)})`).join(', from ')}`,
  losses.length > 3 && ` and in ${counted(losses.length - 3, 'time')} before`, '. What was refused then may be missing.');

/** @type {Record<string, string>} */
export const STATES = { ok: 'ok', over_limit: 'over the limit', banned: 'banned', denied: 'denied', exempt: 'allowed' };

/** Why packets were dropped, by the label of the reason. @type {Record<string, string>} */
const DROPS = {
  over_limit: 'over the limit', contended: 'whose count other CPUs changed at every try', banned: 'of banned sources',
  denied: 'of denied sources', new_source_budget: 'of new sources over their budget', too_many_tags: 'behind too many tags',
  guard: 'by the guard', too_many_headers: 'behind headers that cannot be parsed', dry_run: 'in dry run', reset: 'answered by a reset', page: 'answered by a page',
};

/** @param {string} reason */
export const dropWords = (reason) => DROPS[reason] ?? reason;

/** A group is given if only its limit refuses the source. @param {string} state @param {string} [reason] @param {string} [group] */
export const tag = (state, reason, group) => el('span', { class: `tag ${['ok', 'exempt'].includes(state) ? 'good' : 'bad'}` },
  group ? `over its group ${group}` : reason === 'guard' ? 'over the guard' : STATES[state] ?? state);

/** Returns the use of each limit that does not count packets.
 * @param {{unit: string, window_seconds: number, used: number, sources: number}[] | undefined} used */
export const usedOf = (used) => (used ?? []).filter((of) => of.unit !== 'packets');

/** @param {string} mode */
export const modeWords = (mode) => (mode === 'enforce' ? 'enforced' : 'dry run');

/** @param {Top} of */
export function again(of) {
  if (['ok', 'exempt'].includes(of.state)) return '–';
  if (of.never) return of.state === 'denied' ? 'when the denial is lifted' : of.state === 'banned' ? 'when the ban is lifted' : 'never: the limit is 0';
  return `in ${duration(Math.ceil(of.retry_after_seconds))}`;
}

/** @param {string} ports */
export const portWords = (ports) => (ports === 'all' ? 'all ports' : /[,-]/.test(ports) ? `ports ${ports.replaceAll(',', ', ')}` : `port ${ports}`);

/** A source's page; of an IPv6 source, by the first address of its prefix. @param {string} source */
export function link(source) {
  const [address, length] = source.split('/');
  const isOne = length === undefined || (address.includes(':') && Number(length) >= 64) || length === '32';
  return isOne ? el('a', { class: 'mono', href: `#/source/${address}`, 'data-key': source }, source) : el('span', { class: 'mono' }, source);
}

/** @param {unknown} error */
export const words = (error) => `${error}`.replace(/^\w*Error: /, '');
