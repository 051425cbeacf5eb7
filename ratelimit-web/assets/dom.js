// @ts-check
// The document. Nothing is put together as HTML: text stays text.

const OF_SVG = new Set(['svg', 'rect', 'path']);

/** @param {string} id @returns {any} */
export const at = (id) => document.getElementById(id);

/**
 * An element: attributes and handlers, then what is in it.
 * @param {string} tag @param {Record<string, any> | null} [attributes] @param {any[]} inner @returns {any}
 */
export function el(tag, attributes, ...inner) {
  /** @type {any} */
  const node = OF_SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') {
      node[`on${name}`] = value;
      (node.handlers ??= []).push(`on${name}`);
    } else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...inner.flat(9).filter((of) => of !== null && of !== undefined && of !== false));
  return node;
}

/**
 * Makes a place's contents these. What is there already stays: focus, selected text, what is unfolded or scrolled.
 * @param {any} place @param {any[]} inner
 */
export function fill(place, ...inner) {
  const held = place.contains(document.activeElement) ? /** @type {any} */ (document.activeElement) : null;
  follow(place, el('div', null, ...inner));
  if (held && document.activeElement !== held) (held.isConnected ? held : at('main')).focus({ preventScroll: true });
}

/** Makes the children of one node those of another; those with a key keep theirs. @param {any} old @param {any} fresh */
function follow(old, fresh) {
  const keyed = new Map([...old.childNodes].filter((of) => of.dataset?.key).map((of) => [of.dataset.key, of]));
  let next = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    const key = want.dataset?.key;
    let have = key ? keyed.get(key) : next;
    while (!key && have?.dataset?.key) have = have.nextSibling;
    if (have?.nodeName !== want.nodeName) {
      old.insertBefore(want, next);
      continue;
    }
    if (have === next) next = next.nextSibling;
    else old.insertBefore(have, next);
    if (want.nodeType === Node.TEXT_NODE) {
      if (have.data !== want.data) have.data = want.data;
    } else become(have, want);
  }
  while (next) [next, old] = [next.nextSibling, (next.remove(), old)];
}

/** @param {any} old @param {any} fresh */
function become(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // What the user has unfolded.
    if (name !== 'open' && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== 'open' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of [...(old.handlers ?? []), ...(fresh.handlers ?? [])]) old[name] = fresh[name] ?? null;
  old.handlers = fresh.handlers;
  follow(old, fresh);
}

/**
 * A table; on a phone a row is a block, whose cells say their head. A row with a key is the same one when it moves.
 * @param {string[]} heads @param {number[]} right @param {any[][]} rows @param {string} caption @param {string[]} [keys]
 */
export const table = (heads, right, rows, caption, keys) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
  el('table', null,
    el('thead', null, el('tr', null, heads.map((head, i) => el('th', { scope: 'col', class: right.includes(i) && 'num' }, head)))),
    el('tbody', null, rows.map((row, n) => el('tr', { 'data-key': keys?.[n] },
      row.map((cell, i) => el('td', { class: right.includes(i) && 'num', 'data-head': heads[i] }, el('span', null, cell))))))));

/** What stands where there is nothing: what to do. @param {...any} text */
export const empty = (...text) => el('p', { class: 'empty' }, ...text);

/** @param {string} text */
export const code = (text) => el('code', null, text);

/** @param {any[][]} rows */
export const pairs = (rows) => el('dl', null, rows.map(([name, value]) => [el('dt', null, name), el('dd', null, value)]));

/** Text in which `commands` are set as such. @param {string} text */
export const marked = (text) => text.split('`').map((part, i) => (i % 2 ? code(part) : part));

/**
 * One of several. @param {string} name @param {string} legend @param {[string, string][]} options @param {string} chosen
 * @param {(value: string) => void} choose
 */
export const choice = (name, legend, options, chosen, choose) => el('fieldset', { class: 'choice' },
  el('legend', { class: 'hidden' }, legend),
  options.map(([value, words]) => el('label', null,
    el('input', { type: 'radio', name, value, checked: value === chosen, change: () => choose(value) }), el('span', null, words))));

/** @param {string} label @param {[string, string][]} options @param {string} chosen @param {(value: string) => void} choose */
export const select = (label, options, chosen, choose) => el('label', null, label,
  el('select', { change: (/** @type {any} */ event) => choose(event.target.value) },
    options.map(([value, words]) => el('option', { value, selected: value === chosen }, words))));
