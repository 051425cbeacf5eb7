"""The application behind hypercorn: a page and what it is made of, five megabytes, and `ok`."""

import os
import pathlib

FILES = pathlib.Path(os.environ["ACCURACY_FILES"])
TYPES = {".html": b"text/html", ".css": b"text/css", ".js": b"application/javascript", ".png": b"image/png"}


def answer(path):
    if path == "/five":
        return bytes(5_000_000), b"application/octet-stream"
    file = FILES / path.lstrip("/")
    if file.suffix in TYPES and file.is_file():
        return file.read_bytes(), TYPES[file.suffix]
    return b"ok\n", b"text/plain"


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    while (await receive()).get("more_body"):
        pass
    body, kind = answer(scope["path"])
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
