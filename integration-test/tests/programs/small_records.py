"""Asks over TLS in records of chosen sizes, one request after the other, and prints how many were answered.

Arguments: the address; 1.2 or 1.3; what it speaks; the sizes of its records, which come around; how often; and a path for `h2`, `/`
without one. `http1` sends requests of 27 bytes and offers HTTP/2 as well, `h2` sends HEADERS that are as long as the first size where
that is possible.
"""
import socket
import ssl
import sys

address, version, speaks, sizes, times, *paths = sys.argv[1:]
sizes = [int(size) for size in sizes.split(",")]

context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
context.set_alpn_protocols(["h2"] if speaks == "h2" else ["h2", "http/1.1"])
raw = socket.create_connection((address, 443), timeout=2)
raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
stream = context.wrap_socket(raw)


def say(text):
    """Each write is a record."""
    turn = 0
    while text:
        size = sizes[turn % len(sizes)]
        stream.send(text[:size])
        text, turn = text[size:], turn + 1


def ask_http1(_):
    say(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        more = stream.recv(65536)
        if not more:
            raise OSError
        answer += more


def frame(kind, flags, number, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload


HEADERS, SETTINGS, GOAWAY, WINDOW_UPDATE = 1, 4, 7, 8
received = b""


def next_frame():
    global received
    while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
        more = stream.recv(65536)
        if not more:
            raise OSError
        received += more
    end = 9 + int.from_bytes(received[:3], "big")
    one, received = received[:end], received[end:]
    return one[3], one[4], int.from_bytes(one[5:9], "big")


# :method GET, :scheme https, :path /, then names that enter the table, newest first from 62 on.
FIRST = b"\x82\x87\x84\x41\x01a\x7a\x01b\x50\x01c"
LATER = {13: b"\x82\x87\x84\xc0", 14: b"\x82\x87\x84\xc0\xbf"}.get(sizes[0], b"\x82\x87\x84\xc0\xbf\xbe")
for path in paths:
    # The path enters the table before the other names.
    literal = b"\x44" + bytes([len(path)]) + path.encode()
    FIRST, LATER = FIRST.replace(b"\x84", literal, 1), LATER.replace(b"\x84", b"\xc1", 1)


def ask_h2(turn):
    number = 1 + 2 * turn
    if turn == 0:
        # Long answers need no updates of the window.
        window = frame(WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big")) if paths else b""
        stream.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + window)
    say(frame(HEADERS, 5, number, FIRST if turn == 0 else LATER))
    while True:
        kind, flags, of = next_frame()
        if kind == SETTINGS and not flags & 1:
            stream.send(frame(SETTINGS, 1, 0))
        if kind == GOAWAY:
            raise OSError
        if of == number and flags & 1:
            return


ask = ask_h2 if speaks == "h2" else ask_http1
answered = 0
try:
    for turn in range(int(times)):
        ask(turn)
        answered += 1
except (TimeoutError, OSError):
    pass
print(answered)
