"""`h2_small.py HOST PORT PATH`: requests one after the other over one connection of HTTP/2, each as short as HPACK makes it."""

import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.events

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl._create_unverified_context()
context.set_alpn_protocols(["h2"])
raw = socket.create_connection((host, port), timeout=4)
raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
tls = context.wrap_socket(raw)
connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
connection.initiate_connection()
# Answers need no frames of ours that make the window larger.
connection.increment_flow_control_window(2**31 - 1 - 65535)
tls.sendall(connection.data_to_send())
headers = [(":method", "GET"), (":scheme", "https"), (":authority", "server.test"), (":path", path)]
while True:
    stream = connection.get_next_available_stream_id()
    connection.send_headers(stream, headers, end_stream=True)
    tls.sendall(connection.data_to_send())
    has_ended = False
    while not has_ended:
        data = tls.recv(65536)
        if not data:
            sys.exit("the server has closed")
        has_ended = any(isinstance(event, h2.events.StreamEnded) for event in connection.receive_data(data))
