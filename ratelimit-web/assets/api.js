// @ts-check
// What is asked of the daemon, and what was last answered.

const csrf = localStorage.getItem('csrf');
/** What every request repeats. @type {Record<string, string>} */
export const HEADERS = csrf ? { 'x-csrf-token': csrf } : {};

/** @typedef {{time: string, passed: number, dropped: number, would: number}} Rate */
/** What `GET /api/v1/stats` answered, and the rates of the last two minutes. @type {{stats: any, rates: Rate[]}} */
export const seen = { stats: undefined, rates: [] };

/** Rates that are kept: of 2 s, two minutes. */
export const RATES = 60;

/** @param {string} path @param {object} [body] @returns {Promise<any>} */
export async function api(path, body) {
  /** @type {RequestInit} */
  const how = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...how, headers: HEADERS, signal: AbortSignal.timeout(20_000) });
  if (answer.status === 401) location.replace('/login');
  const told = await answer.json().catch(() => ({ message: `the daemon answers ${answer.status}` }));
  if (!answer.ok && !told.healthy) throw Object.assign(new Error(told.message), { status: answer.status });
  return told;
}

/** @param {string} path @param {Record<string, string | undefined>} asked */
export const query = (path, asked) => `${path}?${new URLSearchParams(/** @type {any} */ (Object.entries(asked).filter(([, value]) => value)))}`;
