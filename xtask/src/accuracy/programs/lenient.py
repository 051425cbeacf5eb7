"""`lenient.py SERVER LOG HOST:PORT...`: a server that answers requests without a version. It writes a JSON line for each request."""

import json
import sys
import time

server, log, *addresses = sys.argv[1:]
log = open(log, "a", buffering=1)
BODY = b"ok\n"


def log_request(client, method, uri):
    request = {"remote_ip": client, "method": method, "uri": uri}
    log.write(json.dumps({"ts": time.time(), "request": request, "status": 200}) + "\n")


def split(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def wsgi(environ, start_response):
    log_request(environ["REMOTE_ADDR"], environ["REQUEST_METHOD"], environ["PATH_INFO"])
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]


async def asgi(scope, receive, send):
    log_request(scope["client"][0], scope["method"], scope["path"])
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


def waitress_server():
    import waitress

    waitress.serve(wsgi, listen=" ".join(addresses), threads=4)


def cheroot_server():
    import threading

    from cheroot.wsgi import Server

    servers = [Server(split(address), wsgi) for address in addresses]
    for one in servers[1:]:
        threading.Thread(target=one.start, daemon=True).start()
    servers[0].start()


def aiohttp_server():
    import asyncio

    from aiohttp import web

    async def answer(request):
        log_request(request.remote, request.method, request.path)
        return web.Response(body=BODY)

    async def serve():
        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        for address in addresses:
            await web.TCPSite(runner, *split(address)).start()
        await asyncio.Future()

    asyncio.run(serve())


def uvicorn_server():
    import socket

    import uvicorn

    sockets = []
    for address in addresses:
        host, port = split(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets.append(socket.create_server((host, port), family=family))
    config = uvicorn.Config(asgi, http="httptools", lifespan="off", log_level="warning")
    uvicorn.Server(config).run(sockets=sockets)


SERVERS = {
    "waitress": waitress_server,
    "cheroot": cheroot_server,
    "aiohttp": aiohttp_server,
    "uvicorn": uvicorn_server,
}
SERVERS[server]()
