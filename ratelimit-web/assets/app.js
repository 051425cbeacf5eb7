// @ts-check
// The page: asks for statistics every 2 s, and shows the part of it that the address names.

import { access } from './access.js';
import { api, RATES, seen } from './api.js';
import { at } from './dom.js';
import { events } from './events.js';
import { overview } from './overview.js';
import { rules } from './rules.js';
import { source } from './source.js';
import { words } from './words.js';

const POLL_MS = 2000;

/** @type {{update?: () => void, close?: () => void}} */
let page = {};
let isShown = false;

async function poll() {
  try {
    const stats = await api('/api/v1/stats');
    // Without sources: the session has ended.
    if (!stats.top) return location.replace('/login');
    seen.stats = stats;
    const sum = (/** @type {string} */ of) => stats.interfaces.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one.per_second?.[of] ?? 0), 0);
    seen.rates.push({ time: stats.time, passed: sum('passed'), dropped: sum('dropped'), would: sum('would_drop') });
    seen.rates.splice(0, seen.rates.length - RATES);
    at('away').hidden = true;
  } catch (error) {
    at('away').hidden = false;
    at('away').textContent = `The daemon does not answer: ${words(error)}. The values shown are old. Is it running? systemctl status ratelimitd`;
    return;
  }
  if (isShown) page.update?.();
  else show(false);
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @param {boolean} moved */
function show(moved) {
  const [, name, ...rest] = location.hash.split('/');
  const of = decoded(rest.join('/'));
  page.close?.();
  isShown = true;
  /** @type {{node: any, update?: () => void, close?: () => void}} */
  const made = name === 'source' ? source(of) : name === 'rules' ? rules() : name === 'access' ? access() : name === 'events' ? events(of) : overview();
  page = made;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.getAttribute('href') === `#/${name ?? ''}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (name !== 'source' && name !== 'access') made.update?.();
  at('main').replaceChildren(made.node);
  document.title = `${made.node.querySelector('h1')?.textContent} · ratelimitd`;
  if (moved) at('main').focus();
}

function theme() {
  const button = at('theme');
  const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  const tell = () => { button.textContent = isDark() ? 'Light' : 'Dark'; button.setAttribute('aria-label', `${button.textContent} colours`); };
  button.addEventListener('click', () => {
    const theme = isDark() ? 'light' : 'dark';
    document.documentElement.dataset.theme = theme;
    localStorage.setItem('theme', theme);
    tell();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', tell);
  tell();
}

theme();
at('find').addEventListener('submit', (/** @type {Event} */ event) => {
  event.preventDefault();
  const ip = at('ip').value.trim();
  if (ip) location.hash = `#/source/${encodeURIComponent(ip)}`;
});
at('logout').addEventListener('click', async () => {
  await api('/logout', {});
  localStorage.removeItem('csrf');
  location.replace('/login');
});
addEventListener('hashchange', () => { if (isShown && location.hash.startsWith('#/')) show(true); });

const [session] = await Promise.all([api('/web/session').catch(() => ({ login: true })), poll()]);
at('logout').hidden = !session.login;
performance.mark('numbers');
for (;;) {
  await new Promise((go) => setTimeout(go, POLL_MS));
  if (!document.hidden) await poll();
}
