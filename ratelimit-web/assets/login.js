// @ts-check
// Exchanges the code of a one-time link for a session's cookie. The code stands behind #, which no server logs.

/** @param {string} id */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} text */
async function enter(text) {
  const code = text.trim().split('#').pop();
  try {
    const answer = await fetch('/login', { method: 'POST', body: JSON.stringify({ code }) });
    const told = await answer.json();
    if (answer.ok) {
      // The cookie goes to every port of this host; this stays with this page, and every request repeats it.
      localStorage.setItem('csrf', told.csrf);
      return location.replace('/');
    }
    at('error').textContent = told.message;
  } catch {
    at('error').textContent = 'The daemon does not answer.';
  }
}

at('login').addEventListener('submit', (event) => {
  event.preventDefault();
  enter(String(new FormData(/** @type {HTMLFormElement} */ (at('login'))).get('code')));
});

function follow() {
  const code = location.hash.slice(1);
  if (!code) return;
  // Not into the history of the browser.
  history.replaceState(null, '', '/login');
  enter(code);
}

// Also where the link is opened in the place of this page.
addEventListener('hashchange', follow);
follow();
