"""`h3_client.py KIND HOST PORT N` over HTTP/3: requests one after the other or at once, a download, an upload, an idle connection."""

import asyncio
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration

kind, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    def quic_event_received(self, event):
        for heard in self.http.handle_event(event):
            if getattr(heard, "stream_ended", False) and heard.stream_id in self.waiting:
                self.waiting.pop(heard.stream_id).set_result(None)

    async def ask(self, path, body=None):
        stream = self._quic.get_next_available_stream_id()
        answered = asyncio.get_running_loop().create_future()
        self.waiting[stream] = answered
        headers = {
            b":method": b"POST" if body else b"GET",
            b":scheme": b"https",
            b":authority": b"server.test",
            b":path": path,
            b"user-agent": b"aioquic",
        }
        self.http.send_headers(stream, list(headers.items()), end_stream=body is None)
        if body:
            self.http.send_data(stream, body, True)
        self.transmit()
        await answered


async def main():
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE)
    configuration.server_name = "server.test"
    async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
        if kind == "one-by-one":
            for _ in range(count):
                await client.ask(b"/ok")
        elif kind == "at-once":
            await asyncio.gather(*[client.ask(b"/ok") for _ in range(count)])
        elif kind == "download":
            await client.ask(b"/five")
        elif kind == "upload":
            await client.ask(b"/sink", bytes(count))
        elif kind == "idle":
            await client.ask(b"/ok")
            for _ in range(count):
                await asyncio.sleep(1)
                await client.ping()


asyncio.run(main())
