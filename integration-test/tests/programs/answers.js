// Answers each request, and appends a line with its client's address to the log. Arguments: the address, the log. Port 80 speaks HTTP/1,
// port 443 speaks HTTP/2 in the clear.
"use strict";
const fs = require("fs");
const http = require("http");
const http2 = require("http2");

const [address, log] = process.argv.slice(2);

function answer(request, response) {
  fs.appendFileSync(log, `${request.socket.remoteAddress} ${request.httpVersion}\n`);
  response.end("ok\n");
}

http.createServer(answer).listen(80, address);
http2.createServer(answer).listen(443, address);
