// `node_server.js FILES LOG CLEAR_PORT TLS_PORT HTTP2_PORT`: Node's own servers, of node:http, node:https and node:http2. They log in
// the combined format.

const fs = require("node:fs");
const http = require("node:http");
const http2 = require("node:http2");
const https = require("node:https");
const path = require("node:path");

const [files, log, clear, tls, secureHttp2] = process.argv.slice(2);
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "application/javascript", ".png": "image/png" };
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const lines = fs.createWriteStream(log, { flags: "a" });
const key = fs.readFileSync(path.join(files, "key.pem"));
const cert = fs.readFileSync(path.join(files, "certificate.pem"));

function time() {
  const now = new Date();
  const of = (number) => String(number).padStart(2, "0");
  const clock = [now.getUTCHours(), now.getUTCMinutes(), now.getUTCSeconds()].map(of).join(":");
  return `${of(now.getUTCDate())}/${MONTHS[now.getUTCMonth()]}/${now.getUTCFullYear()}:${clock} +0000`;
}

function find(url) {
  const type = TYPES[path.extname(url)];
  const file = path.join(files, path.normalize("/" + url));
  return type && fs.existsSync(file) ? { body: fs.readFileSync(file), type } : { body: "ok\n", type: "text/plain" };
}

function answer(request, response) {
  const client = request.socket.remoteAddress.replace(/^::ffff:/, "");
  const { method, url, httpVersion } = request;
  request.resume().on("end", () => {
    const { body, type } = find(url);
    response.writeHead(200, { "Content-Type": type, "Content-Length": Buffer.byteLength(body) });
    response.end(body);
  });
  response.on("finish", () => lines.write(`${client} - - [${time()}] "${method} ${url} HTTP/${httpVersion}" 200 - "-" "-"\n`));
}

http.createServer({ keepAliveTimeout: 60_000 }, answer).listen(clear, "::");
https.createServer({ key, cert, keepAliveTimeout: 60_000 }, answer).listen(tls, "::");
http2.createSecureServer({ key, cert, allowHTTP1: true }, answer).listen(secureHttp2, "::");
