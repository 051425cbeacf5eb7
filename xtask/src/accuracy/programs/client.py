"""Clients that no program at hand is: `client.py KIND URL [N]`. No certificate is verified."""

import http.client
import socket
import ssl
import sys
import time
from urllib.parse import urlsplit

kind, url = sys.argv[1:3]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 0
at = urlsplit(url)
context = ssl._create_unverified_context()


def connect():
    raw = socket.create_connection((at.hostname, at.port), timeout=20)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw) if at.scheme == "https" else raw


def request(extra=b""):
    return b"GET /ok HTTP/1.1\r\nHost: server.test\r\nUser-Agent: client/1\r\n" + extra + b"\r\n"


def hear(connection, answers):
    heard = b""
    while heard.count(b"HTTP/1.1 200") < answers or not heard.endswith(b"ok\n"):
        data = connection.recv(65536)
        if not data:
            sys.exit("the server has closed")
        heard += data


def http_client():
    """Python's own, one connection: half GET, half POST with the body in a segment of its own."""
    kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
    options = {"context": context} if at.scheme == "https" else {}
    connection = kind(at.hostname, at.port, **options)
    for number in range(count):
        if number % 2:
            connection.request("POST", "/sink", body=b"x" * 500)
        else:
            connection.request("GET", "/ok")
        connection.getresponse().read()


def split_post():
    """A head, a pause, a body."""
    connection = connect()
    for _ in range(count):
        connection.sendall(b"POST /sink HTTP/1.1\r\nHost: server.test\r\nContent-Length: 500\r\n\r\n")
        time.sleep(0.02)
        connection.sendall(b"x" * 500)
        hear(connection, 1)


def requests_library():
    import requests

    session = requests.Session()
    for number in range(count):
        session.get(url + "/ok", verify=False)
        session.post(url + "/sink", data="y" * 300, verify=False)
        if number % 4 == 0:
            requests.get(url + "/ok", verify=False)


def httpx_library():
    import httpx

    with httpx.Client(http2=True, verify=False) as client:
        for number in range(count):
            client.put(url + "/put/small", content=b"x" * 500) if number % 2 else client.get(url + "/ok")


def httpx_parallel():
    import asyncio

    import httpx

    async def ask():
        async with httpx.AsyncClient(http2=True, verify=False) as client:
            await asyncio.gather(*[client.get(f"{url}/page/{number % 40}.png") for number in range(count)])

    asyncio.run(ask())


def pipeline():
    """Batches of 20 requests in one send each."""
    connection = connect()
    for _ in range(count):
        connection.sendall(request() * 20)
        hear(connection, 20)


def trickle():
    """Five bytes at a time."""
    connection = connect()
    for _ in range(count):
        text = request(b"X-Long: " + b"y" * 60 + b"\r\n")
        for start in range(0, len(text), 5):
            connection.sendall(text[start : start + 5])
            time.sleep(0.02)
        hear(connection, 1)


def idle():
    """One request, then nothing but the kernel's keep-alives, one a second."""
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.sendall(request())
    hear(connection, 1)
    time.sleep(count)


def websocket():
    """Messages with an answer each, then some at once."""
    import asyncio

    import websockets

    options = {"ssl": context} if at.scheme == "https" else {}

    async def talk():
        async with websockets.connect(url.replace("http", "ws", 1) + "/ws", proxy=None, **options) as connection:
            for number in range(count):
                await connection.send("m" * (10 + number * 4))
                await connection.recv()
            for _ in range(20):
                await connection.send("at once")
            for _ in range(20):
                await connection.recv()

    asyncio.run(talk())


KINDS = {
    "http.client": http_client,
    "split-post": split_post,
    "requests": requests_library,
    "httpx": httpx_library,
    "httpx-parallel": httpx_parallel,
    "pipeline": pipeline,
    "trickle": trickle,
    "idle": idle,
    "websocket": websocket,
}
KINDS[kind]()
