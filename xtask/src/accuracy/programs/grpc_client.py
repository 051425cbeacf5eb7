"""`grpc_client.py KIND ADDRESS CERTIFICATE N`: so many calls one after the other, or one call of so many messages."""

import sys
import time

import grpc

kind, address, certificate, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
# The certificate is of this name, whatever the address.
options = [("grpc.ssl_target_name_override", "server.test"), ("grpc.enable_http_proxy", 0)]
credentials = grpc.ssl_channel_credentials(open(certificate, "rb").read())


def messages():
    for number in range(count):
        yield b"message %d " % number * 10
        time.sleep(0.03)


with grpc.secure_channel(address, credentials, options) as channel:
    if kind == "unary":
        call = channel.unary_unary("/lab.Echo/Unary")
        for _ in range(count):
            call(b"x" * 100, timeout=20)
    else:
        for _ in channel.stream_stream("/lab.Echo/Stream")(messages(), timeout=20):
            pass
