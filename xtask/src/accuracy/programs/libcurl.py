"""libcurl with another TLS library than curl's own: `libcurl.py LIBRARY KIND VERSION URL N [FILE]`, by way of ctypes.

KIND: get (kept alive), apart (a connection each), upload, upload-continue. No certificate is verified.
"""

import ctypes
import sys

library, kind, version, url, count = *sys.argv[1:5], int(sys.argv[5])
VERBOSE, URL, WRITEFUNCTION, READDATA, UPLOAD, HTTPHEADER = 41, 10002, 20011, 10009, 46, 10023
SSL_VERIFYPEER, SSL_VERIFYHOST, FORBID_REUSE, HTTP_VERSION, INFILESIZE, FAILONERROR, PROXY = 64, 81, 75, 84, 14, 45, 10004
HTTP_1_1, HTTP_2 = 2, 3

curl = ctypes.CDLL(library)
curl.curl_easy_init.restype = ctypes.c_void_p
curl.curl_easy_strerror.restype = ctypes.c_char_p
curl.curl_slist_append.restype = ctypes.c_void_p
curl.curl_version.restype = ctypes.c_char_p
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
curl.curl_global_init(3)
handle = ctypes.c_void_p(curl.curl_easy_init())
SINK = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)(
    lambda _data, size, number, _user: size * number
)


def option(number, value):
    value = ctypes.c_long(value) if isinstance(value, int) else value
    if code := curl.curl_easy_setopt(handle, number, value):
        sys.exit(f"option {number}: {curl.curl_easy_strerror(code).decode()}")


def headers(*lines):
    chain = None
    for line in lines:
        chain = ctypes.c_void_p(curl.curl_slist_append(chain, line))
    option(HTTPHEADER, chain)


option(URL, url.encode())
option(PROXY, b"")
option(WRITEFUNCTION, SINK)
option(FAILONERROR, 1)
option(SSL_VERIFYPEER, 0)
option(SSL_VERIFYHOST, 0)
option(HTTP_VERSION, HTTP_2 if version == "2" else HTTP_1_1)
option(FORBID_REUSE, int(kind == "apart"))
if kind.startswith("upload"):
    option(UPLOAD, 1)
    with open(sys.argv[6], "rb") as file:
        option(INFILESIZE, file.seek(0, 2))
    if kind == "upload":
        headers(b"Expect:")
for _ in range(count):
    if kind.startswith("upload"):
        option(READDATA, ctypes.c_void_p(libc.fopen(sys.argv[6].encode(), b"rb")))
    if code := curl.curl_easy_perform(handle):
        sys.exit(f"{curl.curl_version().decode()}: {curl.curl_easy_strerror(code).decode()}")
curl.curl_easy_cleanup(handle)
