<?php
// A page and a login behind the limiter: php -S '[::]:8080' index.php. A wrong password costs as much as CHARGE connections.

declare(strict_types=1);

require __DIR__ . '/ratelimitd.php';

const RULE = 'login';
const CHARGE = 5;

ratelimitd_guard(RULE);
header('Content-Type: text/plain');
if (parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH) !== '/login') {
    exit("hello\n");
}
if (($_POST['password'] ?? null) === (getenv('DEMO_PASSWORD') ?: 'correct horse')) {
    exit("welcome\n");
}
ratelimitd_send_headers(ratelimitd_charge($_SERVER['REMOTE_ADDR'], RULE, CHARGE));
http_response_code(401);
echo "wrong password\n";
