// @ts-check
// Charts: stacked columns, with an axis, a reading of each step for mouse, finger and keyboard, and the numbers as a table.

import { el, table } from './dom.js';
import { number, short } from './words.js';

/** A line of numbers; a step is null where nothing was recorded. @typedef {{name: string, look: string, values: (number | null)[]}} Series */
/** @typedef {{label: string, unit: string, steps: string[], ends: [string, string], series: Series[], sum: boolean}} Chart */

const HEIGHT = 100;
const STEP = 10;

/** The next number that is easy to read: 1, 2 or 5 and noughts. @param {number} of */
function round(of) {
  const power = 10 ** Math.floor(Math.log10(Math.max(of, 1)));
  return (/** @type {number} */ ([1, 2, 5, 10].find((by) => by * power >= of))) * power;
}

/** A bar of `used` in `limit`. @param {number} used @param {number} limit @param {boolean} over */
export const bar = (used, limit, over) => el('svg', { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
  el('rect', { class: 'rail', width: 100, height: 6 }),
  el('rect', { class: over ? 'drop' : 'pass', width: limit ? Math.min(100, (used / limit) * 100) : 100, height: 6 }));

/**
 * The first series is the lowest of each column. A chart that is shown again has the step that is read, and the table that is unfolded, in `held`.
 * @param {Chart} of @param {{step?: number, isOpen?: boolean}} held
 */
export function chart({ label, unit, steps, ends, series, sum }, held) {
  const columns = steps.map((_, i) => series.map((one) => one.values[i] ?? null));
  const isKnown = (/** @type {number} */ i) => columns[i].some((value) => value !== null);
  const most = round(Math.max(1, ...columns.map((column) => column.reduce((/** @type {number} */ all, value) => all + (value ?? 0), 0))));
  const rects = [0, 0.5].map((at) => el('rect', { class: 'rail', y: at * HEIGHT, width: steps.length * STEP, height: 0.5 }));
  columns.forEach((column, i) => {
    let y = HEIGHT;
    if (!isKnown(i)) rects.push(el('rect', { class: 'unknown', x: i * STEP, y: HEIGHT - 3, width: STEP, height: 3 }));
    column.forEach((value, n) => {
      const height = ((value ?? 0) / most) * HEIGHT;
      y -= height;
      if (height) rects.push(el('rect', { class: series[n].look, x: i * STEP + 1, y, width: STEP - 2, height }));
    });
  });
  rects.push(el('rect', { class: 'axis', y: HEIGHT - 0.5, width: steps.length * STEP, height: 0.5 }));
  const told = (/** @type {number} */ i) => `${steps[i]}: ${isKnown(i)
    ? series.map((one) => `${number(one.values[i] ?? 0)} ${one.name}`).join(', ') : 'nothing recorded'}`;
  const last = steps.length - 1;
  const step = Math.min(held.step ?? last, last);
  // Of the document: what is shown here may only be what that becomes.
  const read = (/** @type {any} */ slider, /** @type {number} */ i) => {
    held.step = i;
    const figure = slider.closest('figure');
    figure.querySelector('output').textContent = told(i);
    figure.querySelector('.mark').setAttribute('x', String(i * STEP));
    slider.setAttribute('aria-valuetext', told(i));
  };
  // A slider, as it has the keys, and says to a screen reader where it stands.
  const slider = el('input', {
    type: 'range', class: 'scrub', min: 0, max: last, value: step, 'aria-label': `${label}: step`, 'aria-valuetext': told(step),
    input: (/** @type {any} */ event) => read(event.target, Number(event.target.value)),
    focus: (/** @type {any} */ event) => read(event.target, Number(event.target.value)),
    pointermove: (/** @type {any} */ event) => {
      const box = event.target.getBoundingClientRect();
      const i = Math.max(0, Math.min(last, Math.floor(((event.clientX - box.left) / box.width) * steps.length)));
      event.target.value = i;
      read(event.target, i);
    },
  });
  const total = (/** @type {Series} */ one) => one.values.reduce((/** @type {number} */ all, value) => all + (value ?? 0), 0);
  const unfold = (/** @type {any} */ event) => {
    held.isOpen = event.target.open;
    event.target.querySelector('.numbers').replaceChildren(...(held.isOpen ? [numbers(label, steps, series)] : []));
  };
  return el('figure', { class: 'card', 'aria-label': label },
    el('div', { class: 'plot' },
      el('div', { class: 'y', 'aria-hidden': 'true' }, [most, most / 2, 0].map((of) => el('span', null, short(of)))),
      el('div', { class: 'area' },
        el('svg', { class: 'chart', preserveAspectRatio: 'none', viewBox: `0 0 ${steps.length * STEP} ${HEIGHT}`, 'aria-hidden': 'true' },
          rects, el('rect', { class: 'mark', width: STEP, height: HEIGHT, x: held.step === undefined ? -STEP : step * STEP })),
        slider),
      el('div', { class: 'x', 'aria-hidden': 'true' }, ends.map((of) => el('span', null, of)))),
    el('figcaption', null,
      el('p', { class: 'legend' }, [...series].reverse().map((one) => el('span', { class: one.look },
        `${one.name}: ${number(sum ? total(one) : one.values.at(-1) ?? 0)}`))),
      el('output', { class: 'faint' }, held.step === undefined ? `${unit}; point at a column, or use the arrow keys` : told(step))),
    el('details', { toggle: unfold }, el('summary', null, 'As a table'),
      el('div', { class: 'numbers' }, held.isOpen && numbers(label, steps, series))));
}

/** Newest first, without steps of which nothing is known. @param {string} label @param {string[]} steps @param {Series[]} series */
const numbers = (label, steps, series) => table(['Time', ...series.map((one) => one.name)], series.map((_, i) => i + 1),
  steps.map((step, i) => [step, ...series.map((one) => (one.values[i] === null ? '–' : number(one.values[i] ?? 0)))])
    .filter((row) => row.slice(1).some((cell) => cell !== '–')).reverse(), label);
