<?php
// How an application asks ratelimitd about a client, and charges it for what the network cannot see.
//
// Knows the control socket and nothing else; PHP alone is enough. Whatever goes wrong with the daemon, the application goes
// on as if there were none: every function then answers null, within twice RATELIMITD_TIMEOUT_SECONDS.

declare(strict_types=1);

// A daemon that is well answers within a millisecond or two.
const RATELIMITD_TIMEOUT_SECONDS = 0.1;
const RATELIMITD_ANSWER_BYTES_MAX = 65536;

/** How a source, an IP address as text, stands with a rule: an array as docs/API.md has it, or null. */
function ratelimitd_check(string $source, string $rule): ?array
{
    return ratelimitd_ask('GET', '/v1/check/' . rawurlencode($source) . '?rule=' . rawurlencode($rule));
}

/** Adds to what a source has used, and says how it stands then; or null. */
function ratelimitd_charge(string $source, string $rule, int $amount = 1): ?array
{
    return ratelimitd_ask('POST', '/v1/charge', ['source' => $source, 'rule' => $rule, 'amount' => $amount]);
}

/** Whether the next one of this source would be dropped. Nobody is blocked by a daemon that does not answer. */
function ratelimitd_is_blocked(?array $standing): bool
{
    return $standing !== null && $standing['verdict'] === 'drop';
}

/** Sends RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10), and Retry-After for who is blocked. */
function ratelimitd_send_headers(?array $standing): void
{
    if ($standing === null) {
        return;
    }
    ['rule' => $rule, 'limit' => $limit] = $standing;
    header(sprintf('RateLimit-Policy: "%s";q=%d;w=%d', $rule, $limit['amount'], ceil($limit['window_seconds'])));
    $state = sprintf('RateLimit: "%s";r=%d', $rule, $standing['remaining']);
    if (!ratelimitd_is_blocked($standing) || $standing['never']) {
        header($state);
        return;
    }
    $seconds = (int) ceil($standing['retry_after_seconds']);
    header("$state;t=$seconds");
    header("Retry-After: $seconds");
}

/**
 * At the top of a page: answers 429 to who is blocked, and ends; else says in the answer how much is left. Behind a reverse proxy
 * the client is not REMOTE_ADDR, and the limiter sees the proxy too: there this is of no use.
 */
function ratelimitd_guard(string $rule): void
{
    $standing = ratelimitd_check($_SERVER['REMOTE_ADDR'], $rule);
    ratelimitd_send_headers($standing);
    if (ratelimitd_is_blocked($standing)) {
        http_response_code(429);
        header('Content-Type: text/plain');
        exit("too many requests\n");
    }
}

function ratelimitd_ask(string $method, string $path, ?array $body = null): ?array
{
    $socket = getenv('RATELIMITD_SOCKET') ?: '/run/ratelimitd/control.sock';
    $stream = @stream_socket_client("unix://$socket", $errno, $error, RATELIMITD_TIMEOUT_SECONDS);
    if ($stream === false) {
        return null;
    }
    stream_set_timeout($stream, 0, (int) (RATELIMITD_TIMEOUT_SECONDS * 1_000_000));
    $body = $body === null ? '' : json_encode($body, JSON_INVALID_UTF8_SUBSTITUTE);
    // HTTP/1.0: the answer comes in one piece, and ends with the connection.
    $head = "$method $path HTTP/1.0\r\nHost: localhost\r\nContent-Length: " . strlen($body) . "\r\n\r\n";
    $sent = @fwrite($stream, $head . $body);
    $answer = $sent === false ? '' : (string) @stream_get_contents($stream, RATELIMITD_ANSWER_BYTES_MAX);
    fclose($stream);
    // A rule that is not there, or an address that is none, is the application's mistake, which must not take it down.
    if (!preg_match('#^HTTP/1\.[01] 200 #', $answer)) {
        return null;
    }
    $standing = json_decode(explode("\r\n\r\n", $answer, 2)[1] ?? '', true);
    return is_array($standing) ? $standing : null;
}
