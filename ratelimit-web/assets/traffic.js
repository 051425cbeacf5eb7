// @ts-check
// Traffic over a period: live as this page sees it, or from the history; by what became of it, by rule, or by reason.

import { api, query, RATES, seen } from './api.js';
import { chart } from './chart.js';
import { choice, code, el, empty, fill, table } from './dom.js';
import { counted, duration, instant, link, lossWords, number, words } from './words.js';

/** @type {[string, string][]} */
const PERIODS = [['live', '2 min, live'], ['5m', '5 min'], ['1h', '1 hour'], ['24h', '24 hours'], ['30d', '30 days']];
/** @type {Record<string, string>} */
const IN_WORDS = { '5m': 'five minutes', '1h': 'hour', '24h': '24 hours', '30d': '30 days' };
/** @type {[string, string][]} */
const VIEWS = [['all', 'Passed and dropped'], ['admitted', 'Passed, by rule'], ['rule', 'Dropped, by rule'], ['reason', 'Dropped, by reason']];
/** Lines of a chart; what is more is one line. */
const LINES_MAX = 6;
/** The history writes a minute when it is over. */
const AGAIN_MS = 20_000;

/** @typedef {{rule: string, reason: string, outcome: string, packets: (number | null)[]}} Line */

/** @param {Line[]} lines @param {(line: Line) => string} name @returns {Map<string, (number | null)[]>} */
function sums(lines, name) {
  const all = new Map();
  for (const line of lines) {
    const sum = all.get(name(line));
    all.set(name(line), sum ? sum.map((/** @type {number | null} */ of, /** @type {number} */ i) => (of === null ? line.packets[i] : of + (line.packets[i] ?? 0))) : [...line.packets]);
  }
  return all;
}

/** @param {string} view @param {Line[]} lines @returns {import('./chart.js').Series[]} */
function series(view, lines) {
  if (view === 'all') {
    const by = sums(lines, (line) => line.outcome);
    const none = lines[0].packets.map((of) => of && 0);
    return [['admitted', 'passed', 'pass'], ['dropped', 'dropped', 'drop'], ['would', 'would drop', 'would']]
      .map(([outcome, name, look]) => ({ name, look, values: by.get(outcome) ?? none }));
  }
  const of = lines.filter((line) => (line.outcome === 'admitted') === (view === 'admitted'));
  const by = sums(of, (line) => (view === 'reason' ? line.reason : line.rule + (line.outcome === 'would' ? ', would drop' : '')));
  const total = (/** @type {(number | null)[]} */ values) => values.reduce((/** @type {number} */ all, value) => all + (value ?? 0), 0);
  const ranked = [...by].filter(([, values]) => total(values)).sort((a, b) => total(b[1]) - total(a[1]));
  const more = ranked.splice(LINES_MAX).map(([, values]) => ({ rule: '', reason: '', outcome: '', packets: values }));
  const shown = ranked.map(([name, values], i) => ({ name, look: `line${i}`, values }));
  return more.length ? [...shown, { name: `${more.length} more`, look: 'rest', values: sums(more, () => '').get('') ?? [] }] : shown;
}

/** @param {Date} time @param {number} step_seconds */
const clock = (time, step_seconds) => (step_seconds < 3600 ? time.toISOString().slice(11, 16) : time.toISOString().slice(0, 16).replace('T', ' ')) + ' UTC';

/** What is shown; null where nothing is to be. @param {string} period @param {string} view @param {any} past @returns {import('./chart.js').Chart | null} */
function shown(period, view, past) {
  if (period === 'live') {
    const rates = [...Array(RATES - seen.rates.length).fill(null), ...seen.rates];
    const of = (/** @type {'passed' | 'dropped' | 'would'} */ name) => rates.map((rate) => rate && rate[name]);
    return { label: 'Packets a second over the last two minutes', unit: 'Packets a second, since this page was opened', sum: false,
      steps: rates.map((rate) => (rate ? `${rate.time.slice(11, 19)} UTC` : 'Before this page was opened')), ends: ['2 minutes ago', 'now'],
      series: [{ name: 'passed', look: 'pass', values: of('passed') }, { name: 'dropped', look: 'drop', values: of('dropped') },
        { name: 'would drop', look: 'would', values: of('would') }] };
  }
  if (!past?.lines.some((/** @type {Line} */ line) => line.packets.some((of) => of !== null))) return null;
  const lines = series(view, past.lines);
  if (!lines.length) return null;
  const since = Date.parse(past.since);
  const starts = lines[0].values.map((_, i) => new Date(since + i * past.step_seconds * 1000));
  const step = duration(past.step_seconds);
  return { label: `${VIEWS.find(([value]) => value === view)?.[1]} over the last ${IN_WORDS[period]}`, sum: true, series: lines,
    unit: `Packets in each ${step}`, steps: starts.map((time) => `${clock(time, past.step_seconds)}, ${step}`),
    ends: [clock(starts[0], past.step_seconds), 'now'] };
}

/** Two parts of the overview, the chart and who was refused most; `update` draws them anew. */
export function traffic() {
  const [node, worstNode] = [el('div'), el('div')];
  const kept = (/** @type {string} */ name, /** @type {[string, string][]} */ all, /** @type {string} */ usual) => {
    const of = localStorage.getItem(name);
    return all.some(([value]) => value === of) ? String(of) : usual;
  };
  let [period, view] = [kept('period', PERIODS, '1h'), kept('view', VIEWS, 'all')];
  /** @type {any} */
  let past = null;
  /** @type {any} */
  let worst = null;
  let problem = '';
  let asked = 0;
  let held = {};
  const choose = (/** @type {string} */ name, /** @type {string} */ value) => {
    localStorage.setItem(name, value);
    if (name === 'period') [period, past, worst, asked, problem] = [value, null, null, 0, ''];
    else view = value;
    held = {};
    update();
  };
  async function ask() {
    asked = Date.now();
    const of = period;
    try {
      const told = await api(query('/api/v1/series', { period: of }));
      if (of !== period) return;
      [past, problem] = [told, ''];
      const refused = await api(query('/api/v1/worst', { since: told.since }));
      if (of !== period) return;
      worst = refused;
    } catch (error) {
      if (of !== period) return;
      problem = words(error);
    }
    show();
  }
  function body() {
    const of = shown(period, view, past);
    if (of) return chart(of, held);
    if (problem.includes('[history]')) return empty('Only live traffic can be shown: ', problem, '. To keep a history, set ', code('enabled = true'), ' there and reload.');
    if (problem) return empty(problem, '.');
    if (!past) return empty('Reading the history …');
    const any = past.lines.some((/** @type {Line} */ line) => line.packets.some((one) => one));
    if (any) return empty(view === 'admitted' ? 'No rule passed a packet' : 'No rule dropped a packet', ` in the last ${IN_WORDS[period]}.`);
    return empty(`Nothing is recorded of the last ${IN_WORDS[period]}. A minute is written when it is over; until then, look at “2 min, live”.`);
  }
  function show() {
    fill(node, el('div', { class: 'choices' },
      choice('period', 'Period', PERIODS, period, (value) => choose('period', value)),
      period !== 'live' && choice('view', 'What is shown', VIEWS, view, (value) => choose('view', value))),
    body());
    fill(worstNode, refusedMost());
  }
  function refusedMost() {
    if (!worst || period === 'live') return null;
    const rows = worst.sources.filter((/** @type {any} */ of) => !of.would).slice(0, 10);
    const head = el('h2', null, `Refused most, last ${IN_WORDS[period]}`);
    const lost = lossWords(worst.losses);
    if (!rows.length) return [head, lost, empty(lost ? 'No refusal is remembered.' : 'No source was refused in this time.')];
    const left = worst.sources.filter((/** @type {any} */ of) => !of.would).length - rows.length + worst.omitted;
    return [head, lost, table(['Source', 'Packets refused', 'Episodes', 'Last', 'Reasons', 'Rules'], [1, 2],
      rows.map((/** @type {any} */ of) => [link(of.source), number(of.packets), number(of.episodes), of.ended ? instant(of.ended) : 'ongoing',
        of.reasons.map((/** @type {string} */ reason) => code(reason)).flatMap((/** @type {any} */ one, /** @type {number} */ i) => (i ? [', ', one] : [one])), of.rules.join(', ')]),
      'Refused most', rows.map((/** @type {any} */ of) => of.source)),
    left > 0 && el('p', { class: 'faint' }, `${counted(left, 'more source')}: `, code('ratelimitd history --json'))];
  }
  const update = () => {
    if (period !== 'live' && Date.now() - asked > AGAIN_MS) ask();
    show();
  };
  return { node, worst: worstNode, update };
}
