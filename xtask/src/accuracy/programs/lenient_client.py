"""`lenient_client.py LINE HOST PORT K`: K requests in one segment, again and again. LINE is each request's first line."""

import socket
import sys
import time

line, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
requests = f"{line}\r\nConnection: keep-alive\r\n\r\n".encode() * count
assert len(requests) <= 1440, "they do not fit into one segment"


def connect():
    connection = socket.create_connection((host, port), timeout=2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection):
    """One burst. Fails unless each request is answered."""
    connection.sendall(requests)
    heard = b""
    while heard.count(b"ok\n") < count:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {heard.count(b'ok')} answers: {heard[:80]!r}")
        heard += data


while True:
    try:
        connection = connect()
        while True:
            ask(connection)
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.1)
