// `node_client.js KIND URL N [FILE]`. KIND: https (kept alive), apart (a connection each), http2 (one stream at a time), http2-at-once
// (ten under way), fetch, upload, http2-upload. No certificate is verified.

const fs = require("node:fs");
const http = require("node:http");
const http2 = require("node:http2");
const https = require("node:https");

process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";
process.removeAllListeners("warning");
const [kind, url, number, file] = process.argv.slice(2);
const count = Number(number);
const module_ = url.startsWith("https") ? https : http;

function ask(agent, method, body) {
  return new Promise((done, fail) => {
    const headers = body ? { "Content-Length": body.length } : {};
    const request = module_.request(url, { agent, method, headers, rejectUnauthorized: false }, (answer) => {
      if (answer.statusCode > 299) fail(new Error(`status ${answer.statusCode}`));
      answer.resume().on("end", done);
    });
    request.on("error", fail).end(body);
  });
}

function askStream(session, body) {
  return new Promise((done, fail) => {
    // By itself it names an IPv6 address without its brackets.
    const { host, pathname } = new URL(url);
    const stream = session.request({ ":authority": host, ":path": pathname, ":method": body ? "PUT" : "GET" });
    stream.on("response", (headers) => headers[":status"] > 299 && fail(new Error(`status ${headers[":status"]}`)));
    stream.on("error", fail).resume().on("end", done);
    stream.end(body);
  });
}

async function oneByOne(times, ask) {
  for (let number = 0; number < times; number++) await ask();
}

async function main() {
  const body = file && fs.readFileSync(file);
  if (kind === "https" || kind === "apart" || kind === "upload") {
    const agent = new module_.Agent({ keepAlive: kind !== "apart", maxSockets: 1 });
    await oneByOne(count, () => ask(agent, body ? "PUT" : "GET", body));
    agent.destroy();
  } else if (kind === "fetch") {
    await oneByOne(count, async () => (await fetch(url)).text());
  } else {
    const session = http2.connect(url, { rejectUnauthorized: false });
    const lanes = kind === "http2-at-once" ? 10 : 1;
    const lane = () => oneByOne(count / lanes, () => askStream(session, body));
    await Promise.all(Array.from({ length: lanes }, lane));
    session.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
