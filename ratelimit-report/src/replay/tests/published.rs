//! Replays of lines in documented formats, checked against an independent count of the lines that contain each address.

use super::*;

/// Log format: name, head, and a template line. `{addr}` is the client's address, `{at}` the address with brackets
/// around IPv6. The other placeholders, such as `{c}` and `{e}`, are the time in the notation of the format.
struct Shape {
    name: &'static str,
    head: &'static str,
    line: &'static str,
}

const fn shape(name: &'static str, head: &'static str, line: &'static str) -> Shape {
    Shape { name, head, line }
}

const SHAPES: [Shape; 22] = [
    shape(
        "AWS application load balancer",
        "",
        r#"https {i} app/web/50dc6c495c0c9188 {addr}:50000 10.0.0.5:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.org:443/ HTTP/1.1" "curl/8.5.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/web/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.org" "-" 1 {i} "forward" "-" "-" "10.0.0.5:80" "200" "-" "-""#,
    ),
    shape(
        "AWS application load balancer, a port that could be a group, and a target of IPv6",
        "",
        r#"h2 {i} app/web/50dc6c495c0c9188 {addr}:443 2001:db8:99:1:2:3:4:5:8080 0.000 0.001 0.000 200 200 5 57 "GET https://10.0.2.105:773/ HTTP/2.0" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337327-72bd00b0343d75b906739c42" "-" "-" 1 {i} "redirect" "https://example.com:80/" "-" "10.0.0.66:9000" "200" "-" "-""#,
    ),
    shape(
        "AWS classic load balancer",
        "",
        r#"{i} my-loadbalancer {addr}:2817 10.0.0.1:80 0.000086 0.001048 0.001337 200 200 0 57 "GET https://www.example.com:443/ HTTP/1.1" "curl/7.38.0" DHE-RSA-AES128-SHA TLSv1.2"#,
    ),
    shape(
        "CloudFront",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status\n",
        "{d}\t{t}\tLAX1\t2390282\t{addr}\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200",
    ),
    shape(
        "IIS",
        "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status time-taken\n",
        "{d} {t} 10.0.0.9 GET / - 443 - {addr} Mozilla/5.0 200 15",
    ),
    shape(
        "HAProxy, option httplog",
        "",
        r#"{addr}:50000 [{h}] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#,
    ),
    shape(
        "HAProxy, option httplog, a port that could be a group, in syslog",
        "",
        r#"<134>{s} lb haproxy[14389]: {addr}:443 [{h}] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /index.html HTTP/1.1""#,
    ),
    shape(
        "HAProxy, option httpslog",
        "",
        r#"{addr}:50000 [{h}] https~ static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /index.html HTTP/1.1" 0/0/0/0/0 1wt.eu/TLSv1.3/TLS_AES_256_GCM_SHA384"#,
    ),
    shape(
        "HAProxy, option httplog clf",
        "",
        r#"{addr} - - [{c}] "GET / HTTP/1.1" 200 2750 "" "" 50000 123 "http-in" "static" "srv1" 10 0 30 69 109 ---- 1 1 1 1 0 0 0 "" """#,
    ),
    shape(
        "Traefik, JSON",
        "",
        r#"{"ClientAddr":"{at}:50000","DownstreamStatus":200,"Duration":929675,"RequestAddr":"www.example.org","StartUTC":"{i}","level":"info","msg":"","time":"{i}"}"#,
    ),
    shape(
        "Traefik, common",
        "",
        r#"{addr} - - [{c}] "GET / HTTP/1.1" 200 2326 "-" "-" 1 "web@docker" "http://172.18.0.3:80" 1ms"#,
    ),
    shape(
        "Caddy, remote_ip",
        "",
        r#"{"level":"info","ts":{e},"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"{addr}","remote_port":"50000","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/"},"duration":0.000929675,"status":200}"#,
    ),
    shape(
        "Caddy before 2.5, remote_addr",
        "",
        r#"{"level":"info","ts":{e},"logger":"http.log.access","msg":"handled request","request":{"remote_addr":"{at}:443","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/"},"duration":0.000929675,"status":200}"#,
    ),
    shape(
        "Envoy, JSON",
        "",
        r#"{"start_time":"{i}","method":"GET","path":"/","protocol":"HTTP/1.1","response_code":200,"duration":4,"upstream_host":"10.0.0.1:80","downstream_local_address":"10.0.0.9:80","downstream_remote_address":"{at}:50000"}"#,
    ),
    shape(
        "Envoy, text",
        "",
        r#"[{i}] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "{addr}" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#,
    ),
    shape(
        "Istio, text",
        "",
        r#"[{i}] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl/7.73.0-DEV" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 {at}:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default"#,
    ),
    shape(
        "lighttpd, whose second word is the host",
        "",
        r#"{addr} 203.0.113.80 - [{c}] "GET / HTTP/1.1" 200 3388 "-" "curl/8.5.0""#,
    ),
    shape(
        "Squid",
        "",
        "{e}    921 {addr} TCP_MISS/200 507 POST http://www.example.org/ - HIER_DIRECT/203.0.113.80 text/html",
    ),
    shape(
        "Google's load balancer",
        "",
        r#"{"httpRequest":{"latency":"0.1s","remoteIp":"{addr}","requestMethod":"GET","requestUrl":"https://www.example.org/","serverIp":"10.0.0.1","status":200},"timestamp":"{i}"}"#,
    ),
    shape(
        "Azure's application gateway",
        "",
        r#"{"timeStamp":"{i}","resourceId":"/SUBSCRIPTIONS/X","operationName":"ApplicationGatewayAccess","properties":{"instanceId":"appgw_2","clientIP":"{addr}","clientPort":50000,"httpMethod":"GET","requestUri":"/","serverRouted":"10.0.0.5:80"}}"#,
    ),
    shape(
        "Cloudflare's Logpush",
        "",
        r#"{"ClientIP":"{addr}","ClientRequestHost":"example.com","ClientRequestMethod":"GET","EdgeEndTimestamp":"{i}","EdgeResponseStatus":200,"EdgeStartTimestamp":"{i}","RayID":"3a6050bcbe121a87"}"#,
    ),
    shape(
        "nginx behind X-Forwarded-For with ports, as Azure's gateway writes it",
        "",
        r#""{at}:50000" - - [{c}] "GET / HTTP/1.1" 200 5"#,
    ),
];

const SOURCES: [(&str, u64); 5] = [
    ("198.51.100.7", 9),
    ("192.0.2.9", 2),
    ("2001:db8:4538:1:bcf4:5264:e01c:f215", 7),
    ("2001:db8:7::7", 5),
    ("2001:db8:8::1:22", 1),
];

/// Fills the placeholders of a template line.
fn filled(line: &str, address: &str, second: u64) -> String {
    let at = jiff::Timestamp::from_second(i64::try_from(START / SECOND_NS + second).unwrap()).unwrap();
    let bracketed = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    line.replace("{addr}", address)
        .replace("{at}", &bracketed)
        .replace("{i}", &at.strftime("%Y-%m-%dT%H:%M:%S.186641Z").to_string())
        .replace("{c}", &at.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string())
        .replace("{h}", &at.strftime("%d/%b/%Y:%H:%M:%S.655").to_string())
        .replace("{s}", &at.strftime("%b %e %H:%M:%S").to_string())
        .replace("{e}", &format!("{}.123", at.as_second()))
        .replace("{d}", &at.strftime("%Y-%m-%d").to_string())
        .replace("{t}", &at.strftime("%H:%M:%S").to_string())
}

#[test]
fn every_documented_shape_agrees_with_a_count_of_its_addresses() {
    let of = policy(vec![limit(1, Unit::Requests)]);
    for Shape { name, head, line } in SHAPES {
        let mut text = head.to_owned();
        let mut second = 2;
        for round in 0..9 {
            for (address, count) in SOURCES {
                if round < count {
                    text += &filled(line, address, second);
                    text += "\n";
                    second += 1;
                }
            }
        }
        let report = replayed(text.as_bytes(), &of).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Count of the lines with the text of an address, independent of the parser.
        let lines_with = |address: &str| text.lines().filter(|line| line.contains(address)).count() as u64;
        let mut expected: Vec<(String, u64)> = SOURCES
            .iter()
            .map(|(address, _)| (source_of(address), lines_with(address)))
            .filter(|(_, lines)| *lines > 1)
            .collect();
        expected.sort();
        let mut counted: Vec<(String, u64)> =
            report.limits[0].limited.iter().map(|of| (of.source.clone(), of.admitted + of.refused)).collect();
        counted.sort();
        assert_eq!(counted, expected, "{name}");
        assert_eq!((report.sources, report.input.judged, report.input.unreadable), (5, 24, 0), "{name}");
        assert_eq!(report.input.out_of_order, 0, "{name}");
    }
}

/// Returns the client of an address: IPv6 by its first four groups.
fn source_of(address: &str) -> String {
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{}/64", std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        Err(_) => address.to_owned(),
    }
}

#[test]
fn lines_of_connections_and_lines_without_a_client_are_refused_by_name_and_line() {
    let of = policy(vec![limit(1, Unit::Requests)]);
    let good = String::from_utf8(log(&[(0, "192.0.2.7")])).unwrap();
    for (line, name) in [
        (
            "tls 2.0 2020-04-01T08:51:42 net/my-network-loadbalancer/c6e77e28c25b2234 g3d4b5e8bb8464cd 72.21.218.154:51341 172.100.100.185:443 5 2 98 246 - arn:aws:acm:us-east-2:671290407336:certificate/2a108f19-aded-46b0-8493-c63eb1ef4a99 - ECDHE-RSA-AES128-SHA tlsv12 - my-network-loadbalancer-c6e77e28c25b2234.elb.us-east-2.amazonaws.com - - - 2020-04-01T08:51:20",
            "network load balancer",
        ),
        (
            r#"2015-05-13T23:39:43.945958Z my-loadbalancer 192.168.131.39:2817 10.0.0.1:80 0.001069 0.000028 0.000041 - - 82 305 "- - - " "-" - -"#,
            "a TCP connection of a classic load balancer",
        ),
        ("10.0.1.2:33313 [06/Feb/2009:12:12:51.443] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0", "HAProxy's TCP log"),
        (
            r#"[2016-04-15T20:17:00.310Z] "GET / HTTP/2" 204 - 154 0 226 100 "-" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80""#,
            "Envoy without a client",
        ),
    ] {
        let report = replayed(format!("{good}{line}\n").as_bytes(), &of).unwrap();
        assert_eq!((report.input.judged, report.input.unreadable), (1, 1), "{line}");
        let [warning] = report.warnings.as_slice() else { panic!("{line}: {:?}", report.warnings) };
        assert!(warning.contains("the first is line 2: ") && warning.contains(name), "{warning}");
    }
}

#[test]
fn a_line_that_is_written_at_its_end_is_judged_when_its_request_came() {
    let of = policy(vec![limit(1, Unit::Requests)]);
    let alb = r#"https 2026-10-10T14:05:36.186641Z app/web/50dc 192.0.2.7:2817 10.0.0.1:80 0.086 600.048 0.037 200 200 0 57 "GET https://www.example.org:443/a b HTTP/1.1" "Mozilla/5.0 (X11)" ECDHE TLSv1.2 arn:aws:x "Root=1" "www.example.org" "-" 1 2026-10-10T13:55:36.100000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
    let squid = "1791641136.100 600000 192.0.2.7 TCP_MISS/200 507 GET http://a/ - HIER_DIRECT/203.0.113.80 text/html";
    let traefik = r#"{"ClientHost":"192.0.2.7","StartUTC":"2026-10-10T13:55:36.1Z","time":"2026-10-10T14:05:36Z"}"#;
    for line in [alb, squid, traefik] {
        let report = replayed(line.as_bytes(), &of).unwrap();
        let from = report.input.from.unwrap().to_string();
        assert_eq!(from, "2026-10-10T13:55:36.1Z", "{line}");
    }
}
