"""A page and a login behind the limiter: python3 demo.py [ADDRESS] [PORT]. A wrong password costs as much as CHARGE connections."""

import os
import socket
import sys
from socketserver import ThreadingMixIn
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import ratelimitd

RULE = "login"
CHARGE = 5
PASSWORD = os.environ.get("DEMO_PASSWORD", "correct horse")


def application(environ, start_response):
    text = [("Content-Type", "text/plain")]
    if environ["PATH_INFO"] != "/login":
        start_response("200 OK", text)
        return [b"hello\n"]
    length = min(int(environ.get("CONTENT_LENGTH") or 0), 4096)
    form = parse_qs(environ["wsgi.input"].read(length).decode("utf-8", "replace"))
    if form.get("password") == [PASSWORD]:
        start_response("200 OK", text)
        return [b"welcome\n"]
    environ["ratelimitd.standing"] = ratelimitd.charge(environ["REMOTE_ADDR"], RULE, CHARGE)
    start_response("401 Unauthorized", text)
    return [b"wrong password\n"]


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = socket.AF_INET6

    def server_bind(self):
        # IPv4 clients too, in their IPv6 form; the daemon knows that form.
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class Handler(WSGIRequestHandler):
    def address_string(self):
        # The default asks the name server.
        return self.client_address[0]


if __name__ == "__main__":
    address, port = (sys.argv[1:] + ["::", "8080"][len(sys.argv) - 1 :])[:2]
    guarded = ratelimitd.Middleware(application, RULE)
    with make_server(address, int(port), guarded, Server, Handler) as server:
        print(f"listening on [{address}]:{port}", file=sys.stderr, flush=True)
        server.serve_forever()
