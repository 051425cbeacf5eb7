// @ts-check
// The page: asks the API, and renders what it says. Nothing is put together as HTML: text stays text.

/** @typedef {{amount: number, window_seconds: number, unit: string, bucket_seconds: number, window: string}} Limit */
/** @typedef {{source: string, rule: string, unit: string, used: number, limit: number, window_seconds: number, dropped: number,
 *   would_drop: number, state: string, reason: string, retry_after_seconds: number, never: boolean}} Top */
/** @typedef {{passed: number, dropped: number, would: number}} Rate */

const POLL_MS = 2000;
const KEPT = 60; // of 2 s: two minutes
const EVENTS_KEPT = 200;

const csrf = localStorage.getItem('csrf');
/** What every request repeats. @type {Record<string, string>} */
const HEADERS = csrf ? { 'x-csrf-token': csrf } : {};
/** What `GET /api/v1/stats` answers. @type {any} */
let stats;
/** @type {Rate[]} */
const rates = [];
/** @type {{update?: () => void, close?: () => void}} */
let page = {};

// The document.

/** @param {string} id @returns {any} */
const at = (id) => document.getElementById(id);

/** An element: attributes, then what is in it. @param {string} tag @param {Record<string, any> | null} [attributes] @param {any[]} inner */
function el(tag, attributes, ...inner) {
  const node = tag === 'svg' || tag === 'rect' ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== undefined && value !== false) node.setAttribute(name, String(value));
  }
  node.append(...inner.flat(9).filter((of) => of !== null && of !== undefined && of !== false));
  return node;
}

/** Puts new contents in place of old ones; what has the focus keeps it. @param {Element} place @param {any[]} inner */
function fill(place, ...inner) {
  const held = place.contains(document.activeElement) ? document.activeElement?.getAttribute('data-key') : null;
  place.replaceChildren(...inner.flat(9).filter(Boolean));
  if (held) /** @type {any} */ (place.querySelector(`[data-key="${CSS.escape(held)}"]`))?.focus();
}

/** @param {string[]} heads @param {number[]} right @param {any[][]} rows @param {string} caption */
const table = (heads, right, rows, caption) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
  el('table', null,
    el('thead', null, el('tr', null, heads.map((head, i) => el('th', { scope: 'col', class: right.includes(i) && 'num' }, head)))),
    el('tbody', null, rows.map((row) => el('tr', null,
      row.map((cell, i) => el('td', { class: right.includes(i) && 'num', 'data-head': heads[i] }, cell)))))));

/** @param {...any} text */
const empty = (...text) => el('p', { class: 'empty' }, ...text);

/** @param {string} text */
const code = (text) => el('code', null, text);

/** A bar of `used` in `limit`. @param {number} used @param {number} limit @param {boolean} over */
const bar = (used, limit, over) => el('svg', { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': true },
  el('rect', { class: 'rail', width: 100, height: 6 }),
  el('rect', { class: over ? 'drop' : 'pass', width: limit ? Math.min(100, (used / limit) * 100) : 100, height: 6 }));

// Words.

/** @param {number} of */
const number = (of) => Math.round(of).toLocaleString('en-US');

/** @param {number} of @param {string} one */
const counted = (of, one) => `${number(of)} ${one}${of === 1 ? '' : 's'}`;

/** As commands say it: 5m, 1h30m, 12s. @param {number} seconds */
function duration(seconds) {
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
const instant = (time) => `${time.slice(0, 19).replace('T', ' ')} UTC`;

/** @param {Limit} of */
const limitWords = (of) => `${number(of.amount)} ${of.unit} in ${duration(of.window_seconds)}`;

/** @type {Record<string, string>} */
const STATES = { ok: 'ok', over_limit: 'over the limit', banned: 'banned', denied: 'denied', exempt: 'allowed' };
/** @type {Record<string, string>} */
const DROPS = {
  over_limit: 'over the limit', contended: 'whose count other CPUs changed at every try', banned: 'of banned sources',
  denied: 'of denied sources', new_source_budget: 'of new sources over their budget', too_many_tags: 'behind too many tags',
  guard: 'by the guard', too_many_headers: 'behind headers that cannot be parsed',
};

/** @param {string} state @param {string} [reason] */
const tag = (state, reason) => el('span', { class: `tag ${['ok', 'exempt'].includes(state) ? 'good' : 'bad'}` },
  reason === 'guard' ? 'over the guard' : STATES[state] ?? state);

/** @param {string} mode */
const modeWords = (mode) => (mode === 'enforce' ? 'enforced' : 'dry run');

/** @param {Top} of */
function again(of) {
  if (['ok', 'exempt'].includes(of.state)) return '–';
  if (of.never) return of.state === 'denied' ? 'when the denial is lifted' : 'never: the limit is 0';
  return `in ${duration(Math.ceil(of.retry_after_seconds))}`;
}

/** @param {string} ports */
const portWords = (ports) => (ports === 'all' ? 'all ports' : /[,-]/.test(ports) ? `ports ${ports}` : `port ${ports}`);

/** A source's page; of an IPv6 source, by the first address of its prefix. @param {string} source */
function link(source) {
  const [address, length] = source.split('/');
  const isOne = length === undefined || (address.includes(':') && Number(length) >= 64) || length === '32';
  return isOne ? el('a', { class: 'mono', href: `#/source/${address}`, 'data-key': source }, source) : el('span', { class: 'mono' }, source);
}

/** @param {unknown} error */
const words = (error) => `${error}`.replace(/^\w*Error: /, '');

// The API.

/** @param {string} path @param {object} [body] @returns {Promise<any>} */
async function api(path, body) {
  /** @type {RequestInit} */
  const how = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...how, headers: HEADERS, signal: AbortSignal.timeout(20_000) });
  if (answer.status === 401) location.replace('/login');
  const told = await answer.json().catch(() => ({ message: `the daemon answers ${answer.status}` }));
  if (!answer.ok && !told.healthy) throw Object.assign(new Error(told.message), { status: answer.status });
  return told;
}

// What there is to see.

/** What wants attention, in the words of `ratelimitd stats`. @param {any} of @returns {string[]} */
function attention(of) {
  const told = [];
  for (const one of of.interfaces) {
    if (!one.attached) told.push(`${one.name} is not attached and not protected${one.problem ? `: ${one.problem}` : ''}; it is tried again all the time`);
    if (one.xdp_mode === 'generic') told.push(`${one.name} is in generic mode, slow: behind the driver`);
  }
  if (of.hold) told.push(`${of.hold.panic ? 'Panic' : 'Dry run'} by ${of.hold.by} since ${instant(of.hold.since)}: \`ratelimitd mode enforce\` ends it`);
  for (const rule of of.fallen_back ?? []) told.push(`Rule ${rule} fell back to dry run, as it dropped more than it may: \`ratelimitd mode enforce\` ends it`);
  if (of.confirm_within_seconds !== undefined) told.push(`A file is on trial: it is rolled back in ${duration(of.confirm_within_seconds)} unless \`ratelimitd confirm\` follows`);
  const { config, sources } = of;
  if (config.rolled_back) told.push(`What held before ${config.rolled_back.file} holds again: ${config.rolled_back.why || 'it was rolled back'}`);
  if (!config.last_reload_successful) told.push(`The last reload failed, and what held before goes on: ${config.error ?? 'see the log'}`);
  for (const one of of.dominant ?? []) told.push(`Rule ${one.rule}: ${one.percent}% of what it counts comes from ${one.source}; if that is a proxy or a CDN, all its users are one source: allow it, or give it a rule of its own`);
  for (const list of of.stale_lists ?? []) told.push(`List file ${list.file} is not followed, and what it held before holds: ${list.error ?? 'see the log'}`);
  if (sources.pressure !== 'none') told.push(`More new sources come than can be remembered: 1 in ${number(sources.sampled_one_in)} of their packets is sampled, the rest pass`);
  for (const error of of.map_errors ?? []) if (error.count) told.push(`Map errors: ${error.map} ${error.op}, ${counted(error.count, 'time')}`);
  return told;
}

/** Packets a second over the last two minutes, as far as this page has seen them. What is older is the history's to tell. */
function chart() {
  const [width, height, step] = [600, 90, 10];
  const peak = Math.max(1, ...rates.map((of) => of.passed + of.dropped));
  const first = KEPT - rates.length;
  const bars = rates.flatMap((of, i) => {
    const [x, pass, drop] = [(first + i) * step, (of.passed / peak) * height, (of.dropped / peak) * height];
    return [el('rect', { class: 'pass', x, y: height - pass, width: step - 2, height: pass }),
      el('rect', { class: 'drop', x, y: height - pass - drop, width: step - 2, height: drop })];
  });
  const label = `Packets a second over the last two minutes, at most ${number(peak)}`;
  return el('div', { class: 'card' },
    el('svg', { class: 'chart', preserveAspectRatio: 'none', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label },
      el('rect', { class: 'rail', y: height - 1, width, height: 1 }), bars),
    el('p', { class: 'legend' }, el('span', { class: 'is-pass' }, 'passed'), el('span', { class: 'is-drop' }, 'dropped'),
      el('span', null, `the last two minutes, as seen since this page was opened; at most ${number(peak)} packets a second`)));
}

function overview() {
  const place = el('div');
  const update = () => {
    const now = rates.at(-1);
    const told = attention(stats);
    const top = /** @type {Top[]} */ (stats.top ?? []);
    const refused = top.filter((of) => !['ok', 'exempt'].includes(of.state));
    const near = top.filter((of) => of.state === 'ok');
    const figure = (name, value, more) =>
      el('div', { class: 'card' }, el('div', { class: 'faint' }, name), el('div', { class: 'big' }, value), el('div', { class: 'faint' }, more));
    const total = (of) => stats.interfaces.reduce((sum, one) => sum + one.packets[of], 0);
    fill(place,
      el('h1', null, 'Overview'),
      el('p', { class: 'faint' }, `ratelimitd ${stats.version}, up ${duration(Math.floor(stats.uptime_seconds))}: `,
        stats.mode === 'enforce' ? 'enforcing, what is over a limit is dropped' : 'dry run, nothing is dropped and what would be is counted'),
      told.length ? el('ul', { class: 'attention', 'aria-label': 'What wants attention' }, told.map((of) => el('li', null, of)))
        : el('p', { class: 'good' }, '✓ Nothing wants attention.'),
      el('div', { class: 'cards' },
        figure('Passed', `${number(now?.passed ?? 0)}/s`, counted(total('passed'), 'packet')),
        figure('Dropped', `${number(now?.dropped ?? 0)}/s`, counted(total('dropped'), 'packet')),
        figure('Would drop', `${number(now?.would ?? 0)}/s`, `${counted(total('would_drop'), 'packet')}, in dry run`),
        figure('Sources', number(stats.sources.tracked), `${number(stats.sources.banned)} banned`)),
      el('h2', null, 'Traffic'), chart(),
      el('h2', null, 'Who is refused now'),
      refused.length ? sourcesTable(refused, 'Who is refused now')
        : empty('No source is refused now. A source appears here when it is over a limit, banned or denied.'),
      el('h2', null, 'Nearest to a limit'),
      near.length ? sourcesTable(near.slice(0, 10), 'Nearest to a limit')
        : empty('No source has used anything of a limit lately. Is traffic on this interface, and do the rules name its ports? See ',
          el('a', { href: '#/rules' }, 'the rules'), '.'),
      el('h2', null, 'Interfaces'),
      table(['Interface', 'XDP', 'Packets/s', 'Received', 'Passed', 'Dropped', 'Would drop'], [2, 3, 4, 5, 6], stats.interfaces.map((of) => [
        of.name, of.attached ? of.xdp_mode === 'native' ? 'native, in the driver' : 'generic, behind the driver' : 'not attached',
        of.per_second ? number(of.per_second.received) : '–',
        number(of.packets.received), number(of.packets.passed), number(of.packets.dropped), number(of.packets.would_drop)]), 'Interfaces'));
  };
  return { node: place, update };
}

/** @param {Top[]} rows @param {string} caption */
const sourcesTable = (rows, caption) => table(['Source', 'State', 'Rule', 'Used', 'Dropped', 'Would drop', 'Passes again'], [4, 5], rows.map((of) => [
  link(of.source), tag(of.state, of.reason), of.rule,
  el('div', null, `${number(of.used)} of ${number(of.limit)} ${of.unit} in ${duration(of.window_seconds)}`, bar(of.used, of.limit, of.used >= of.limit)),
  number(of.dropped), number(of.would_drop), again(of)]), caption);

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
    rows.length > 0 && el('dl', null, rows.map(([name, value]) => [el('dt', null, name), el('dd', null, value)])));
}

/** A limit, bucket by bucket. @param {any} of @param {string} more */
function windowOf(of, more) {
  /** @type {Record<string, string>} */
  const budgets = { proven: ' of established connections', unproven: ' of unverified traffic' };
  const most = Math.max(1, ...of.buckets.map((one) => one.count));
  return el('div', { class: 'card' },
    el('h3', null, `Rule ${of.rule}${of.mode === 'enforce' ? '' : ', dry run'}: ${number(of.used)} of ${number(of.limit)} ${of.unit}${budgets[of.budget] ?? ''} used in ${duration(of.window_seconds)}${more}`),
    bar(of.used, of.limit, of.over),
    el('p', { class: 'faint' }, `${number(of.remaining)} left; ${counted(of.refused, 'packet')} refused`),
    el('div', { class: 'bars' }, of.buckets.map((one) =>
      [el('span', { class: 'faint' }, one.start.slice(11, 19)), bar(one.count, most, false), el('span', { class: 'num' }, number(one.count))])));
}

/** @param {string} ip */
function source(ip) {
  const body = el('div', null, empty('Reading …'));
  const act = (what) => () => change(what, ip, refresh);
  const node = el('div', null, el('h1', { class: 'mono' }, ip),
    el('div', { class: 'buttons' },
      el('button', { id: 'unblock', click: act('unblock') }, 'Unblock'),
      el('button', { class: 'quiet', click: act('allow') }, 'Allow …'),
      el('button', { class: 'danger', click: act('deny') }, 'Deny …')), body);
  async function refresh() {
    try {
      const of = await api(`/api/v1/check/${encodeURIComponent(ip)}`);
      const on = (is) => of.verdicts?.filter((one) => one.verdict === is).map((one) => one.ports).join(',');
      const [blocked, passes] = [on('drop'), on('pass')];
      fill(body,
        el('p', { id: 'verdict', class: of.verdict === 'drop' ? 'bad' : 'good' }, !of.verdicts?.length ? 'Passes: no rule judges its packets.'
          : [blocked && `Blocked on ${portWords(blocked)}`, passes && `${blocked ? ' and passes' : 'Passes'} on ${portWords(passes)}`, '.']),
        of.source !== ip && el('p', { class: 'faint' }, 'Its source, which is one client, is ', code(of.source), '.'),
        !of.remembered && el('p', { class: 'faint' }, 'No recent traffic from this address.'),
        (of.verdicts ?? []).map(verdict),
        of.limits.length > 0 && el('h2', null, 'Windows'), of.limits.map((one) => windowOf(one, '')),
        (of.guard ?? []).map((one) => el('p', { class: 'card' }, `Guard of rule ${one.rule}: ${number(one.connections.used)} of ${number(one.connections.limit)} connections that ask nothing, ${number(one.segments.used)} of ${number(one.segments.limit)} segments that begin no request used in ${duration(one.window_seconds)}`)),
        of.shadow_limits?.length > 0 && el('h2', null, 'Shadow limits, never enforced'),
        (of.shadow_limits ?? []).map((one) => windowOf(one, '')));
    } catch (error) {
      fill(body, empty(words(error), '. Write an address, as in ', code('198.51.100.7'), ' or ', code('2001:db8::7'), '.'));
    }
  }
  refresh();
  return { node, update: refresh };
}

function rules() {
  const place = el('div');
  /** @type {any} */
  let suggested = null;
  api('/api/v1/suggest').then((of) => { suggested = of; update(); }, (error) => { suggested = { error: error.message, rules: [] }; update(); });
  const update = () => fill(place, el('h1', null, 'Rules'),
    el('p', { class: 'faint' }, 'The first rule that matches a packet judges it. Limits are changed in the configuration file, and ', code('sudo ratelimitd apply --confirm 60s'), ' puts it in force on trial.'),
    stats.rules.map((of) => {
      const drops = new Map();
      for (const one of stats.interfaces.flatMap((on) => on.counters)) {
        if (one.rule === of.name && one.verdict === 'drop' && one.packets) drops.set(one.reason, (drops.get(one.reason) ?? 0) + one.packets);
      }
      const why = [...drops].map(([reason, packets]) => `${number(packets)} ${DROPS[reason] ?? reason}`).join(', ');
      const proposed = suggested?.rules.find((one) => one.name === of.name);
      const rows = [['Admitted', counted(of.admitted, 'packet')], ['Not counted', counted(of.not_counted, 'packet')],
        ['Dropped', counted(of.dropped, 'packet') + (why && `: ${why}`)], ['Would drop', counted(of.would_drop, 'packet')],
        ['Over limit', `${counted(of.sources_over_limit, 'source')} now`], ['Bans', `${number(of.banned)} now, ${number(of.bans)} begun`]];
      if (of.new_sources) rows.push(['New sources', `at most ${number(of.new_sources.amount)} in ${duration(of.new_sources.window_seconds)}`]);
      return el('section', { class: 'card' },
        el('h2', null, `${of.name} `, el('span', { class: `tag ${of.mode === 'enforce' ? 'good' : 'faint'}` }, modeWords(of.mode))),
        el('p', { class: 'faint' }, `on ${portWords(of.ports)}`),
        el('dl', null, rows.map(([name, value]) => [el('dt', null, name), el('dd', null, value)])),
        of.limits.map((limit, i) => limitOf(limit, proposed?.limits[i])),
        (of.shadow_limits ?? []).map((one) => el('p', { class: 'faint' }, `Shadow limit, never enforced: ${limitWords(one)}; would have dropped ${counted(one.would_drop, 'packet')} of ${counted(one.sources, 'source')}`)),
        suggested?.error && el('p', { class: 'bad' }, suggested.error),
        proposed?.paste && el('p', null, 'In the file: ', code(proposed.paste.file)));
    }));
  return { node: place, update };
}

/** A limit, how full sources' busiest windows were, and what `suggest` says. @param {Limit} limit @param {any} of */
function limitOf(limit, of) {
  const busiest = of?.observed?.busiest_window;
  const shares = busiest && [['half of them', busiest.median], ['90%', busiest.p90], ['99%', busiest.p99], ['all', busiest.max]];
  return el('div', null, el('h3', null, `Limit: ${limitWords(limit)}`),
    busiest && [el('p', { class: 'faint' }, `What each of ${counted(of.observed.sources, 'source')} wanted in its busiest ${duration(limit.window_seconds)}, at most:`),
      el('div', { class: 'bars' }, shares.map(([name, value]) => [el('span', { class: 'faint' }, name), bar(value, limit.amount, value > limit.amount), el('span', { class: 'num' }, number(value))]))],
    of?.proposal && el('p', null, 'Suggested: ', code(of.proposal.limit), `, which would block ${counted(of.proposal.sources_blocked, 'source')}${of.proposal.provisional ? '; provisional, as little was observed' : ''}`),
    of?.notes?.map((note) => el('p', { class: 'faint' }, `Note: ${note}`)));
}

function access() {
  const body = el('div', null, empty('Reading …'));
  const field = el('input', { name: 'prefix', type: 'text', placeholder: '192.0.2.0/24', autocomplete: 'off' });
  const node = el('div', null, el('h1', null, 'Access list'),
    el('p', { class: 'faint' }, 'What is allowed, denied and banned, until when and why. The longer prefix decides.'),
    el('form', { class: 'filter', submit: (event) => { event.preventDefault(); refresh(); } },
      el('label', null, 'Within, or around', field), el('button', { class: 'quiet' }, 'Filter'),
      el('button', { type: 'button', click: () => change('allow', '', refresh) }, 'Allow …'),
      el('button', { type: 'button', class: 'danger', click: () => change('deny', '', refresh) }, 'Deny …')), body);
  async function refresh() {
    const text = /** @type {HTMLInputElement} */ (field).value.trim();
    const prefix = text && (text.includes('/') ? text : `${text}/${text.includes(':') ? 128 : 32}`);
    try {
      const of = await api(`/api/v1/list?most=100${prefix && `&prefix=${encodeURIComponent(prefix)}`}`);
      const by = (one) => one.by === 'configuration' ? [one.list, one.file].filter(Boolean).join(', ') + (one.line ? `:${one.line}` : '') || 'the configuration'
        : one.by === 'ban' ? `rule ${one.rule}` : one.by === 'safety' ? 'safety' : one.user ?? 'a command';
      const undo = (one) => {
        if (!['command', 'ban'].includes(one.by)) return '–';
        const what = one.state === 'exempt' ? 'unallow' : 'unblock';
        return el('button', { class: 'quiet', 'data-key': what + one.prefix, 'aria-label': `${VERBS[what].does} ${one.prefix}`, click: () => change(what, one.prefix, refresh) }, VERBS[what].does);
      };
      fill(body, of.entries.length ? table(['Prefix', 'State', 'Until', 'By', 'Reason', 'Change'], [], of.entries.map((one) => [
        link(one.prefix), [tag(one.state), one.overridden_by && ` overridden by ${one.overridden_by.prefix}`], one.until ? instant(one.until) : 'permanent', by(one), one.reason ?? one.comment ?? '–', undo(one)]), 'Access list')
        : empty(prefix ? 'Nothing is entered within or around this prefix.' : 'Nothing is allowed, denied or banned. ', !prefix && ['Allow your own address first: ', code('sudo ratelimitd allow ADDRESS'), ', or the button above.']),
      (of.omitted ?? []).map((one) => el('p', { class: 'faint' }, `${number(one.count)} more of ${one.of}: ratelimitd list --all`)));
    } catch (error) {
      fill(body, empty(words(error)));
    }
  }
  refresh();
  return { node, update: () => { if (!node.contains(document.activeElement)) refresh(); } };
}

function events() {
  /** @type {any[]} */
  const kept = [];
  const body = el('div', null, empty('Reading …'));
  const stop = new AbortController();
  const none = () => fill(body, empty('Nothing has happened yet. Who is refused, banned, allowed or denied appears here at once.'));
  const show = () => fill(body, table(['Time', 'What', 'Source', 'Rule', 'By', 'Reason'], [], [...kept].reverse().map((of) => [
    el('span', { class: 'faint' }, instant(of.time)), of.detail || of.kind, of.source ? link(of.source) : '–', of.rule ?? '–', of.by ?? '–', of.reason ?? '–']), 'Events, newest first'));
  // Not an EventSource, which cannot send the header: the same as lines, one event each, that are remembered first.
  const follow = async () => {
    const answer = await fetch(`/api/v1/events?follow=true&most=${EVENTS_KEPT}`, { headers: HEADERS, signal: stop.signal });
    // A daemon may have no events.
    if (!answer.ok || !answer.body) return fill(body, empty('This daemon does not send its events to the page. On the host, see its log: ', code('journalctl -u ratelimitd -f'), '.'));
    kept.length = 0;
    none();
    let rest = '';
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split('\n');
      rest = lines.pop() ?? '';
      const told = lines.filter(Boolean).map((line) => JSON.parse(line)).filter((of) => of.kind);
      kept.push(...told);
      kept.splice(0, kept.length - EVENTS_KEPT);
      if (told.length) show();
    }
    later();
  };
  const later = () => setTimeout(() => { if (!stop.signal.aborted) follow().catch(later); }, POLL_MS);
  follow().catch(later);
  return { node: el('div', null, el('h1', null, 'Events'), el('div', { 'aria-live': 'off' }, body)), close: () => stop.abort() };
}

// What is changed.

/** @type {Record<string, {does: string, did: string, text: string, timed: boolean, usual?: string}>} */
const VERBS = {
  unblock: { does: 'Unblock', did: 'unblocked', text: 'Lifts denials and bans, and resets the counters of what is over a limit.', timed: false },
  unallow: { does: 'End', did: 'no command allows it any more', text: 'Ends what a command allows. Limits hold again.', timed: false },
  allow: { does: 'Allow', did: 'allowed', text: 'Passes all its packets, whatever the limits say.', timed: true, usual: '3600' },
  deny: { does: 'Deny', did: 'denied', text: 'Drops all its packets to the protected ports.', timed: true, usual: '14400' },
};

/** Asks, and does it. @param {string} what @param {string} whom @param {() => void} done */
function change(what, whom, done) {
  const of = VERBS[what];
  const dialog = /** @type {HTMLDialogElement} */ (at('ask'));
  const form = dialog.querySelector('form');
  if (!form) return;
  form.reset();
  at('ask-title').textContent = `${of.does} ${whom || 'which address or network'}?`;
  at('ask-whom').hidden = !!whom;
  form.whom.value = whom;
  at('ask-text').textContent = of.text;
  at('ask-do').textContent = of.does;
  at('ask-error').textContent = '';
  for (const id of ['ask-for', 'ask-why']) at(id).hidden = !of.timed;
  at('ask-force').hidden = true;
  if (of.usual) form.seconds.value = of.usual;
  form.onsubmit = async (event) => {
    event.preventDefault();
    const [seconds, reason, prefix] = [form.seconds.value, form.reason.value.trim(), form.whom.value.trim()];
    const grant = { force: form.force.checked, reason: reason || null, ...(seconds === 'forever' ? { forever: true } : { seconds: Number(seconds) }) };
    try {
      const told = await api(`/v1/${what}`, { prefix, ...(of.timed ? grant : {}) });
      dialog.close();
      say([`${prefix}: ${of.did}.`, ...(told.notes ?? []), ...(told.still ?? []).map((one) => `${one.prefix} is still ${STATES[one.state] ?? one.state}. To lift it: ${one.lift}`)].join('\n'));
      done();
    } catch (error) {
      const message = words(error);
      at('ask-error').textContent = message;
      at('ask-force').hidden = !message.includes('--force');
    }
  };
  dialog.querySelector('button[value=cancel]')?.addEventListener('click', () => dialog.close(), { once: true });
  dialog.showModal();
}

/** @type {number | undefined} */
let silence;
/** @param {string} text */
function say(text) {
  at('said').textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { at('said').textContent = ''; }, 8000);
}

// The whole.

async function poll() {
  try {
    stats = await api('/api/v1/stats');
    // Without sources: the session has ended.
    if (!stats.top) return location.replace('/login');
    const sum = (of) => stats.interfaces.reduce((all, one) => all + (one.per_second?.[of] ?? 0), 0);
    rates.push({ passed: sum('passed'), dropped: sum('dropped'), would: sum('would_drop') });
    rates.splice(0, rates.length - KEPT);
    at('away').hidden = true;
    page.update?.();
  } catch (error) {
    at('away').hidden = false;
    at('away').textContent = `The daemon does not answer: ${words(error)}. What is shown is as it was. Is it running? systemctl status ratelimitd`;
  }
}

/** @param {boolean} moved */
function show(moved) {
  const [, name, ...rest] = location.hash.split('/');
  page.close?.();
  const made = name === 'source' ? source(decodeURIComponent(rest.join('/'))) : name === 'rules' ? rules()
    : name === 'access' ? access() : name === 'events' ? events() : overview();
  page = made;
  for (const of of document.querySelectorAll('nav a')) {
    if (of.getAttribute('href') === `#/${name ?? ''}`) of.setAttribute('aria-current', 'page');
    else of.removeAttribute('aria-current');
  }
  document.title = `${made.node.querySelector('h1')?.textContent ?? 'Overview'} · ratelimitd`;
  if ('update' in made && name !== 'source' && name !== 'access') made.update?.();
  fill(at('main'), made.node);
  if (moved) at('main').focus();
}

at('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const ip = at('ip').value.trim();
  if (ip) location.hash = `#/source/${encodeURIComponent(ip)}`;
});
at('logout').addEventListener('click', async () => {
  await api('/logout', {});
  localStorage.removeItem('csrf');
  location.replace('/login');
});
addEventListener('hashchange', () => { if (location.hash.startsWith('#/')) show(true); });

const session = await api('/web/session');
at('logout').hidden = !session.login;
await poll();
if (stats) show(false);
setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
