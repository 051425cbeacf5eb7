// @ts-check
// What is changed: asked in a dialog, and done.

import { api } from './api.js';
import { at } from './dom.js';
import { STATES, words } from './words.js';

/** @type {Record<string, {does: string, did: string, text: string, timed: boolean, usual?: string}>} */
export const VERBS = {
  unblock: { does: 'Unblock', did: 'unblocked', text: 'Lifts denials and bans, and resets the counters of sources over a limit.', timed: false },
  unallow: { does: 'End', did: 'no command allows it any more', text: 'Ends what a command allows. Limits hold again.', timed: false },
  allow: { does: 'Allow', did: 'allowed', text: 'Passes all its packets, whatever the limits say.', timed: true, usual: '3600' },
  deny: { does: 'Deny', did: 'denied', text: 'Drops all its packets to the protected ports.', timed: true, usual: '14400' },
};

at('ask-cancel').addEventListener('click', () => at('ask').close());

/** Asks, and does it. @param {string} what @param {string} whom @param {() => void} done */
export function change(what, whom, done) {
  const of = VERBS[what];
  const dialog = /** @type {HTMLDialogElement} */ (at('ask'));
  const form = /** @type {any} */ (dialog.querySelector('form'));
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
  form.onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const [seconds, reason, prefix] = [form.seconds.value, form.reason.value.trim(), form.whom.value.trim()];
    const grant = { force: form.force.checked, reason: reason || null, ...(seconds === 'forever' ? { forever: true } : { seconds: Number(seconds) }) };
    try {
      const told = await api(`/v1/${what}`, { prefix, ...(of.timed ? grant : {}) });
      dialog.close();
      say([`${prefix}: ${of.did}.`, ...(told.notes ?? []), ...(told.still ?? []).map((/** @type {any} */ one) => `${one.prefix} is still ${STATES[one.state] ?? one.state}. To lift it: ${one.lift}`)].join('\n'));
      done();
    } catch (error) {
      const message = words(error);
      at('ask-error').textContent = message;
      at('ask-force').hidden = !message.includes('--force');
    }
  };
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
