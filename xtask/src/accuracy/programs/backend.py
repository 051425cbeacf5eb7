"""What stands behind nginx: a WebSocket that echoes, on 9001, and a stream of events, on 9002."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import websockets

EVENTS = 40
PAUSE_S = 0.03


class Events(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(EVENTS):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
            time.sleep(PAUSE_S)
        self.close_connection = True

    def log_message(self, *_):
        pass


async def echo(socket):
    async for message in socket:
        await socket.send(message)


async def serve():
    async with websockets.serve(echo, "127.0.0.1", 9001):
        await asyncio.Future()


threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", 9002), Events).serve_forever, daemon=True).start()
asyncio.run(serve())
