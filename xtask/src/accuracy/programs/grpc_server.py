"""A gRPC server without a schema: echoes, and logs each call. Arguments: key, certificate, log, addresses."""

import sys
from concurrent import futures

import grpc

key, certificate, path, *addresses = sys.argv[1:]
log = open(path, "a", buffering=1)


def unary(request, _context):
    log.write("unary\n")
    return request


def stream(requests, _context):
    log.write("stream\n")
    yield from requests


handlers = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Stream": grpc.stream_stream_rpc_method_handler(stream),
}
credentials = grpc.ssl_server_credentials([(open(key, "rb").read(), open(certificate, "rb").read())])
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lab.Echo", handlers),))
for address in addresses:
    server.add_secure_port(address, credentials)
server.start()
server.wait_for_termination()
