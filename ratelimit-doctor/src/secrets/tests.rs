//! Tests that no secret is left in any form, and that other text stays readable.

use proptest::prelude::*;

use super::*;

const SECRET: &str = "hunter2-Tr0ub4dor";

#[test]
fn no_secret_is_left_wherever_it_stands() {
    for text in [
        format!("password = \"{SECRET}\""),
        format!("# password: {SECRET}"),
        format!("# the old password was {SECRET}"),
        format!("PASSWORD={SECRET} other"),
        format!("secret={SECRET}"),
        format!("{{\"token\":\"{SECRET}\",\"schema\":1}}"),
        format!("{{\"a\":1,\"password\" : \"x\\\"{SECRET}\"}}"),
        format!("api_key: '{SECRET}'"),
        format!("password = \"\"\"\nfirst\n{SECRET}\n\"\"\"\nnext = 1"),
        format!("tokens = [\n  \"{SECRET}\",\n]\nnext = 1"),
        format!("url = \"redis://rl:{SECRET}@192.0.2.1:6379\""),
        format!("url = [\"rediss://:{SECRET}@a:1\", \"rediss://:{SECRET}@b:1\"]"),
        format!("redis://:pa/{SECRET}@a:6379/0"),
        format!("redis://:p@{SECRET}@a:6379/0"),
        format!("http://127.0.0.1:9464/login#{SECRET}"),
        format!("URL=https://hooks.example.org/services/T0/{SECRET}\nnext = 1"),
        format!("url = \"https://example.org/{SECRET}/list.txt\" # a feed"),
        format!("https://example.org/list?key={SECRET}&format=text, and so on"),
        format!("https://example.org?{SECRET}"),
        format!("https://example.org/a#{SECRET}"),
        format!("(https://u:p@example.org/a/{SECRET})"),
        format!("unix:///run/valkey.sock?pw={SECRET}"),
        format!("redis+unix:///run/valkey.sock?db=1&x={SECRET}"),
        format!("cannot reach https://[2001:db8::1]:8443/lapi/{SECRET}: refused"),
        format!("Authorization: Bearer {SECRET}"),
        format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\nnext = 1"),
    ] {
        let hidden = Secrets::default().hide(&text, Whose::Ours);
        assert!(!hidden.contains(SECRET) && hidden.contains(HIDDEN), "{text} -> {hidden}");
        assert_eq!(hidden.contains("next = 1"), text.contains("next = 1"), "{text} -> {hidden}");
    }
}

#[test]
fn contents_of_secret_files_are_hidden_in_any_text() {
    let secrets = Secrets::new([format!("{SECRET}\n"), "{\"token\":\"abcdef0123\"}".to_owned()]);
    assert_eq!(secrets.hide(&format!("x{SECRET}y abcdef0123"), Whose::Ours), format!("x{HIDDEN}y {HIDDEN}"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let secrets = Secrets::of(&[&path, Path::new("/nonexistent")]);
    assert_eq!(secrets.hide(SECRET, Whose::Ours), HIDDEN);
}

#[test]
fn text_without_secrets_stays() {
    for text in [
        "secret_file = \"/etc/ratelimitd/fleet.secret\"\n",
        "password_file = \"/etc/x\"\nhosts = 4\n",
        "the fleet's secret cannot be taken from /etc/x: permission denied\n",
        "{\"id\":\"files.secret\",\"state\":\"ok\"}\n",
        "see https://example.org/ and http://127.0.0.1:8080, redis://192.0.2.1:6379/0\n",
        "file:///etc/ratelimitd/feeds/drop.env and unix:///run/valkey.sock\n",
        "(https://example.org).\n",
        "",
    ] {
        assert_eq!(Secrets::default().hide(text, Whose::Ours), text);
    }
    let hidden = Secrets::default().hide("{\"token\":\"x\",\"schema\":1}", Whose::Ours);
    assert_eq!(hidden, "{\"token\":\"<secret>\",\"schema\":1}");
}

/// Texts that people write into reasons and comments; `X` is the secret.
const SAID: [&str; 61] = [
    "token X",
    "password X",
    "the password is X",
    "Bearer X",
    "password \"X\"",
    "secret 'X'",
    "his passwd was `X`, mine not",
    "X is the password",
    "pass=X",
    "pw: X",
    "PW = X",
    "REDISCLI_AUTH=X",
    "license_key=X",
    "licenseKey: X",
    "api key X",
    "pass phrase X",
    "X-Auth-Key: X",
    "Set-Cookie: sid=X; path=/",
    "Authorization: Basic X",
    "sshpass -p X ssh root@192.0.2.1",
    "sshpass -pX ssh root@192.0.2.1",
    "redis-cli -a X ping",
    "/usr/bin/valkey-cli -h 192.0.2.1 -a X",
    "curl -u user:X https://example.org/",
    "curl -fsSu user:X https://example.org/",
    "curl --user user:X https://example.org/",
    "mysql -uroot -pX db",
    "wget --password=X",
    "tool --auth=X",
    "ghp_X0123456789abcdef",
    "see ghp_X0123456789abcdef.",
    "GITHUB=glpat-X0123456789abcdef",
    "(xoxb-X-0123456789)",
    "AKIAX0123456789ABCDEF",
    "eyJhbGciOiJIUzI1NiJ9.X.abc",
    "PASSWORD=\nX",
    "PASSWORD=\n\n  X",
    "password: |\n  X",
    "the password is\nX",
    "password = \\\nX",
    "//user:X@host",
    "//user:X@192.0.2.1:6379/0",
    "user:X@host",
    "url=user:X@host",
    "redis:\\/\\/user:X@host",
    "redis%3A%2F%2Fuser%3AX%40host%3A6379",
    "redis://user%3AX%40host",
    "x=https%3A%2F%2Fhooks.example.org%2Fservices%2FX",
    "redis%253A%252F%252Fuser%253AX%2540host",
    "https://X@example.org/",
    "-----BEGIN PRIVATE KEY-----\nX\n-----END PRIVATE KEY-----",
    "key X",
    "key is X",
    "pass was X",
    "AUTH default X",
    "pw X",
    "CONFIG SET requirepass X",
    "ACL SETUSER limiter >X",
    "<password>X</password>",
    "{'auth': 'X'}",
    "client_secret%3DX",
];

#[test]
fn no_secret_is_left_of_what_users_wrote_in_reasons_and_comments() {
    for (said, secret) in SAID.iter().flat_map(|said| [(said, SECRET), (said, "hunter2x")]) {
        let said = said.replace("X-Auth-Key", "x-auth-key").replace('X', secret);
        let comment: String = said.lines().map(|line| format!("# {line}\n")).collect();
        let behind = format!("limits = [\"3/5m\"] # {}", said.replace('\n', "\n# "));
        let mut texts = vec![(said.clone(), Whose::Users), (comment.clone(), Whose::Configuration)];
        texts.extend([(comment, Whose::Ours), (behind, Whose::Configuration)]);
        if !said.contains(['"', '\n', '\\', '\'']) {
            texts.push((format!("note = \"{said}\""), Whose::Configuration));
        }
        for (text, whose) in texts {
            let hidden = Secrets::default().hide(&text, whose);
            assert!(!hidden.contains(secret) && hidden.contains(HIDDEN), "{whose:?}: {text} -> {hidden}");
        }
        let json = serde_json::json!({"reason": said, "prefix": "192.0.2.7/32", "number": 7}).to_string();
        let hidden = Secrets::default().hide_json(&json, str::to_owned);
        let read: serde_json::Value = serde_json::from_str(&hidden).unwrap();
        assert!(!hidden.contains(secret) && read["reason"].as_str().unwrap().contains(HIDDEN), "{json} -> {hidden}");
        assert_eq!((read["prefix"].as_str(), read["number"].as_u64()), (Some("192.0.2.7/32"), Some(7)), "{hidden}");
    }
}

#[test]
fn a_secret_of_letters_alone_is_hidden_beside_its_word_in_any_text() {
    for text in [
        "token swordfish",
        "the password is swordfish.",
        "bearer swordfish",
        "denied 192.0.2.1: secret 'swordfish'",
        "Environment=REDISCLI_AUTH=swordfish",
        "Environment=\"PASS=swordfish\" \"B=2\"",
        "ExecStart=/usr/bin/redis-cli -a swordfish",
        "reason=\"the password is swordfish\" by=root",
    ] {
        for whose in [Whose::Ours, Whose::Users, Whose::Configuration] {
            let hidden = Secrets::default().hide(text, whose);
            assert!(!hidden.contains("swordfish"), "{whose:?}: {text} -> {hidden}");
        }
    }
}

#[test]
fn json_stays_json_whatever_is_hidden_in_it_and_everything_else_stays() {
    let secrets = Secrets::new(["4815162342\n".to_owned()]);
    for (text, expected) in [
        (
            "{\n  \"reason\": \"stole a cookie: see ticket 7\",\n  \"n\": [1, -2.5e3, true, null]\n}\n",
            "{\n  \"reason\": \"stole a cookie: <secret>\",\n  \"n\": [1, -2.5e3, true, null]\n}\n",
        ),
        (
            "{\"reason\":\"tokens: [\",\"a\":\"b\"}\n{\"c\":1}\n",
            "{\"reason\":\"tokens: <secret>\",\"a\":\"b\"}\n{\"c\":1}\n",
        ),
        ("{\"reason\":\"password: \\\"\",\"a\":2}", "{\"reason\":\"password: <secret>\",\"a\":2}"),
        ("{\"token\":[\"x\",{\"a\":7}],\"a\":\"x\"}", "{\"token\":[\"<secret>\",{\"a\":\"<secret>\"}],\"a\":\"x\"}"),
        ("{\"secret_file\":\"/etc/x\",\"password\":12}", "{\"secret_file\":\"/etc/x\",\"password\":\"<secret>\"}"),
        ("[4815162342,\"4815162342\"]", "[\"<secret>\",\"<secret>\"]"),
        ("{\"seen\":\"the secret /etc/s: user 0, mode 0600\"}", "{\"seen\":\"the secret /etc/s: user 0, mode 0600\"}"),
    ] {
        let hidden = secrets.hide_json(text, str::to_owned);
        assert_eq!(hidden, expected, "{text}");
        for line in if text.starts_with("{\n") { vec![hidden.as_str()] } else { hidden.lines().collect() } {
            assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_in_json_leaves_it_json_with_what_is_beside(text in "\\PC{0,40}|(password|token|:|=| |\"|\\\\|\\[|\n|#|@|//|%40){0,12}") {
        let json = serde_json::json!({"reason": text, "prefix": "192.0.2.7/32", "list": [text, 7]});
        for written in [json.to_string(), serde_json::to_string_pretty(&json).unwrap()] {
            let hidden = Secrets::default().hide_json(&written, str::to_owned);
            let read: serde_json::Value = serde_json::from_str(&hidden).unwrap();
            prop_assert_eq!(&read["prefix"], "192.0.2.7/32");
            prop_assert_eq!(&read["list"][1], 7);
        }
        for whose in [Whose::Ours, Whose::Users, Whose::Configuration] {
            let _hidden = Secrets::default().hide(&text, whose);
        }
    }
}

#[test]
fn shipped_examples_stay_unchanged_except_for_comments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let hidden = Secrets::default().hide(&text, Whose::Configuration);
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.trim_start().starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(lines(&hidden), lines(&text), "{}", path.display());
        count += 1;
    }
    assert!(count > 0);
}
