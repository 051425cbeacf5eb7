// @ts-check
// What happens, as it happens: the daemon's server-sent events, filtered by it.

import { HEADERS, query, seen } from './api.js';
import { code, el, empty, fill, select, table } from './dom.js';
import { instant, link, number, words } from './words.js';

const KEPT = 200;
const AGAIN_MS = 2000;

/** @param {string} source */
export function events(source) {
  /** @type {any[]} */
  let kept = [];
  let missed = 0;
  let isPaused = false;
  let problem = '';
  const wanted = { source, kind: '', rule: '' };
  const [told, body] = [el('p', { class: 'faint', role: 'status' }), el('div', null, empty('Reading …'))];
  let stop = new AbortController();
  const field = el('input', { type: 'text', value: source, placeholder: '198.51.100.0/24', autocomplete: 'off', spellcheck: 'false' });
  const pause = el('button', { type: 'button', class: 'quiet', click: () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? 'Resume' : 'Pause';
    show();
  } }, 'Pause');
  const choose = (/** @type {'kind' | 'rule' | 'source'} */ name, /** @type {string} */ value) => {
    wanted[name] = value;
    again();
  };
  const form = el('form', { class: 'filter', submit: (/** @type {any} */ event) => { event.preventDefault(); choose('source', field.value.trim()); } },
    select('Kind', [['', 'all'], ...seen.stats.events.kinds.map((/** @type {string} */ kind) => [kind, kind])], wanted.kind, (value) => choose('kind', value)),
    select('Rule', [['', 'all'], ...seen.stats.rules.map((/** @type {any} */ of) => [of.name, of.name])], wanted.rule, (value) => choose('rule', value)),
    el('label', null, 'Source, or prefix', field), el('button', { class: 'quiet' }, 'Filter'), pause);
  const show = () => {
    told.textContent = problem || (isPaused ? 'Paused: new events are shown when you resume.' : 'Live: what happens appears here at once, newest first.');
    if (isPaused) return;
    fill(body, missed > 0 && el('p', { class: 'bad' }, `${number(missed)} events came faster than this page could take them: `, code('ratelimitd events')),
      kept.length ? table(['Time (UTC)', 'Kind', 'Source', 'What', 'Reason'], [], [...kept].reverse().map((of) => [
        el('span', { class: 'faint' }, instant(of.time).slice(0, 19)), code(of.kind), of.source ? link(of.source) : '–', of.detail, of.reason ? code(of.reason) : '–']),
      'Events, newest first', [...kept].reverse().map((of) => `${of.n}`))
        : !problem && empty(wanted.source || wanted.kind || wanted.rule ? 'No event matches yet. Choose “all”, or wait: what happens appears here at once.'
          : 'Nothing has happened yet. Sources that are refused, banned, allowed or denied appear here at once.'));
  };
  // No EventSource, as it cannot send the header; the same stream.
  async function listen() {
    const { signal } = stop;
    const answer = await fetch(query('/api/v1/events', { follow: 'true', most: String(KEPT), ...wanted }), { headers: { ...HEADERS, accept: 'text/event-stream' }, signal });
    if (answer.status === 401) return location.replace('/login');
    if (!answer.ok || !answer.body) {
      problem = (await answer.json().catch(() => null))?.message ?? `the daemon answers ${answer.status}`;
      kept = [];
      // Other streams may end, and a daemon that stops may be back.
      if (answer.status === 409 || answer.status >= 500) later(signal);
      return show();
    }
    [kept, missed, problem] = [[], 0, ''];
    show();
    let rest = '';
    let n = 0;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split('\n');
      rest = lines.pop() ?? '';
      const fresh = lines.filter((line) => line.startsWith('data: ')).map((line) => JSON.parse(line.slice(6)));
      for (const of of fresh) {
        if (of.missed) missed += of.missed;
        else kept.push(Object.assign(of, { n: n++ }));
      }
      kept.splice(0, kept.length - KEPT);
      if (fresh.length) show();
    }
    later(signal);
  }
  const later = (/** @type {AbortSignal} */ signal) => setTimeout(() => { if (!signal.aborted) begin(); }, AGAIN_MS);
  function begin() {
    const { signal } = stop;
    listen().catch((error) => {
      if (signal.aborted) return;
      problem = `The event stream broke off and is requested again: ${words(error)}`;
      show();
      later(signal);
    });
  }
  function again() {
    stop.abort();
    stop = new AbortController();
    problem = '';
    begin();
    show();
  }
  begin();
  show();
  return { node: el('div', null, el('h1', null, 'Events'), form, told, body), close: () => stop.abort() };
}
