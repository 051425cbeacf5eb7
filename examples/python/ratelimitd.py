"""How an application asks ratelimitd about a client, and charges it for what the network cannot see.

Knows the control socket and nothing else; the standard library is enough. Whatever goes wrong with the daemon, the
application goes on as if there were none: every function then answers None, within TIMEOUT_SECONDS.
"""

import http.client
import json
import math
import os
import socket
import time
from urllib.parse import quote

SOCKET = os.environ.get("RATELIMITD_SOCKET", "/run/ratelimitd/control.sock")
# A daemon that is well answers within a millisecond or two.
TIMEOUT_SECONDS = 0.1
# So long nobody asks a daemon that did not answer, so that not every request waits for it.
PAUSE_SECONDS = 1.0

_silent_until = 0.0


class _Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def check(source, rule):
    """How a source, an IP address as text, stands with a rule: a dict as docs/API.md has it, or None."""
    return _ask("GET", f"/v1/check/{quote(source, safe=':')}?rule={quote(rule)}")


def charge(source, rule, amount=1):
    """Adds to what a source has used, and says how it stands then; or None."""
    return _ask("POST", "/v1/charge", {"source": source, "rule": rule, "amount": amount})


def is_blocked(standing):
    """Whether the next one of this source would be dropped. Nobody is blocked by a daemon that does not answer."""
    return standing is not None and standing["verdict"] == "drop"


def headers(standing):
    """RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10), and Retry-After for who is blocked."""
    if standing is None:
        return []
    rule, limit = standing["rule"], standing["limit"]
    policy = f'"{rule}";q={limit["amount"]};w={math.ceil(limit["window_seconds"])}'
    state = f'"{rule}";r={standing["remaining"]}'
    if not is_blocked(standing) or standing["never"]:
        return [("RateLimit-Policy", policy), ("RateLimit", state)]
    seconds = math.ceil(standing["retry_after_seconds"])
    return [("RateLimit-Policy", policy), ("RateLimit", f"{state};t={seconds}"), ("Retry-After", str(seconds))]


class Middleware:
    """WSGI: answers 429 to who is blocked, and says in every answer how much is left.

    The application may charge, and put what that answered into environ["ratelimitd.standing"]. Behind a reverse proxy the
    client is not REMOTE_ADDR, and the limiter sees the proxy too: there this is of no use.
    """

    def __init__(self, application, rule):
        self.application = application
        self.rule = rule

    def __call__(self, environ, start_response):
        environ["ratelimitd.standing"] = check(environ["REMOTE_ADDR"], self.rule)

        def start(status, fields, *exc_info):
            return start_response(status, fields + headers(environ["ratelimitd.standing"]), *exc_info)

        if is_blocked(environ["ratelimitd.standing"]):
            start("429 Too Many Requests", [("Content-Type", "text/plain")])
            return [b"too many requests\n"]
        return self.application(environ, start)


def _ask(method, path, body=None):
    global _silent_until
    if time.monotonic() < _silent_until:
        return None
    connection = _Connection("localhost", timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        # A rule that is not there, or an address that is none, is the application's mistake, which must not take it down.
        return json.loads(text) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        _silent_until = time.monotonic() + PAUSE_SECONDS
        return None
    finally:
        connection.close()
