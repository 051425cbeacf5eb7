//! Tests of quoted numbers, over small documents of their own.

use super::*;

const ROWS: &[Quoted] = &[
    Quoted {
        document: "README.md",
        phrase: "one packet costs # ns more, the meter's #, a server # % to # % less",
        sources: &[
            Source::Above("one_source", "limiter"),
            Source::Above("one_source", "nft_meter"),
            Source::Less(&Source::Plain(100.0), &Source::Measured("/servers/rows/tls/percent")),
            Source::Rounded(&Source::Measured("/servers/rows/tls/percent"), 10),
        ],
    },
    Quoted {
        document: "docs/COUNTING.md",
        phrase: "one in # KB, and # MB in all, of # sources",
        sources: &[
            Source::Power("a.rs", "SHIFT", 1 << 10),
            Source::Product([("a.rs", "SEGMENTS"), ("a.rs", "BYTES")], 1 << 20),
            Source::Constant("a.rs", "SOURCES", 1),
        ],
    },
    Quoted {
        document: "docs/FAQ.md",
        phrase: "takes # MB, at worst # times N, and # of the requests",
        sources: &[
            Source::Said("a.snap", "together # MB"),
            Source::Cell { document: "docs/ACCURACY.md", row: &["short", "nginx"], column: "first" },
            Source::Lowest { document: "docs/ACCURACY.md", row: &["nginx"], column: "later" },
        ],
    },
];
const CHOSEN_ROWS: &[Chosen] = &[Chosen { phrase: "a disk of 5 GB", reason: "an example" }];

const README: &str =
    "Here one packet\n  costs 36 ns more, the meter's 497, a server 7 % to 90 % less. It has a\ndisk of 5 GB.";
const COUNTING: &str = "one in 16 KB, and 256\nMB in all, of 262 144 sources";
const FAQ: &str = "It takes 264 MB, at worst 306 times N, and 0.1 of the requests.";

/// Returns the reasons of the breaches in these texts.
fn said(readme: &str, counting: &str, faq: &str) -> Vec<&'static str> {
    let performance = r#"{"floods": {"rows": [{"id": "one_source", "floor": "bare", "receivers": [
        {"id": "limiter", "above_bare_ns": {"median": 36.1}}, {"id": "nft_meter", "above_bare_ns": {"median": 496.6}}]}]},
        "servers": {"rows": [{"id": "clear", "percent": 10.0}, {"id": "tls", "percent": 93.4}]}}"#;
    let code = "pub const SHIFT: u32 = 14;\npub const BYTES: u32 = 1 << SHIFT;\nconst SEGMENTS: u64 = 16_384;\n\
                const SOURCES: u32 = 262_144;";
    let accuracy = "| client | server | first | later |\n|---|---|---|---|\n| short | nginx | 305.6 | 0.1 |\n\
                    | long | nginx | 1.0 | 1.5 |\n\nText.\n\n| client | later |\n|---|---|\n| short, Caddy | 7 |\n";
    let files = [
        ("README.md", readme),
        ("docs/COUNTING.md", counting),
        ("docs/FAQ.md", faq),
        ("docs/ACCURACY.md", accuracy),
        ("a.rs", code),
        ("a.snap", "memory 84 MB\n       together 264 MB, at the start"),
        ("docs/performance.json", performance),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    breaches_of(ROWS, CHOSEN_ROWS, &files).unwrap().into_iter().map(|breach| breach.reason).collect()
}

#[test]
fn a_number_that_its_source_does_not_have_is_found_on_either_side() {
    assert_eq!(said(README, COUNTING, FAQ), [""; 0]);
    for (right, wrong) in [("36 ns", "24 ns"), ("497", "190"), ("7 %", "6 %"), ("90 %", "93 %")] {
        assert_eq!(said(&README.replace(right, wrong), COUNTING, FAQ), [DIFFERS], "{wrong}");
    }
    assert_eq!(said(README, "one in 8 KB, and 255 MB in all, of 262 145 sources", FAQ), [DIFFERS; 3]);
    assert_eq!(said(README, COUNTING, "takes 263 MB, at worst 305 times N, and 0.2 of the requests"), [DIFFERS; 3]);
}

#[test]
fn a_phrase_that_is_gone_is_found() {
    assert_eq!(said("A disk of 5 GB", "Nothing.", FAQ), [GONE, GONE, GONE, NO_SOURCE]);
}

#[test]
fn a_figure_without_a_source_is_found_in_prose_alone() {
    for figure in
        ["55 ns", "1.5 µs", "12 MB", "3 GiB", "5 %", "5%", "17 times", "80 000 requests a second", "1.7 s", "0.2 ms"]
    {
        assert_eq!(said(&format!("{README} Another takes {figure}."), COUNTING, FAQ), [NO_SOURCE], "{figure}");
        assert_eq!(said(&format!("{README} Another takes `{figure}`."), COUNTING, FAQ), [""; 0], "{figure}");
        assert_eq!(said(&format!("{README}\n\n    {figure}\n"), COUNTING, FAQ), [""; 0], "{figure}");
    }
    for other in ["12 s", "200 ms", "16 KB", "5 sources"] {
        assert_eq!(said(&format!("{README} Another takes {other}."), COUNTING, FAQ), [""; 0], "{other}");
    }
}

#[test]
fn a_measurement_that_does_not_exist_is_found() {
    let row = |source| [Quoted { document: "a.md", phrase: "takes # ns", sources: source }];
    let files = [("a.md".to_owned(), "It takes 5 ns.".to_owned())];
    for source in [
        &[Source::Above("none", "limiter")] as &'static [Source],
        &[Source::Measured("/none")],
        &[Source::Said("none.snap", "# ns")],
        &[Source::Constant("none.rs", "NONE", 1)],
        &[Source::Cell { document: "none.md", row: &["a"], column: "b" }],
    ] {
        let found = breaches_of(&row(source), &[], &files).unwrap();
        assert_eq!(found.iter().map(|breach| breach.reason).collect::<Vec<_>>(), [NO_NUMBER], "{source:?}");
    }
}

#[test]
fn each_row_has_a_source_for_each_of_its_numbers_or_a_reason() {
    for row in QUOTED {
        assert_eq!(row.phrase.matches('#').count(), row.sources.len(), "{}", row.phrase);
    }
    for row in CHOSEN {
        assert!(row.reason.len() > 10 && row.phrase.contains(|c: char| c.is_ascii_digit()), "{}", row.phrase);
    }
}

#[test]
fn a_table_of_the_demo_is_that_of_its_last_run() {
    let demo = "phase   tried\nnone      50\nenforce   10\n\n       CPU time\nphase       CPU\nnone     4.54 s\n";
    let said = |readme: &str, guide: &str| {
        let files = [("README.md", readme), ("docs/GUIDE.md", guide), (DEMO, demo)];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        breaches_of_demo(&files).into_iter().map(|breach| (breach.path, breach.line)).collect::<Vec<_>>()
    };
    let whole = "# The demo\n\n    phase   tried\n    none      50\n    enforce   10\n\nText.\n\n    other code\n";
    let part = "    phase   tried\n    enforce   10\n";
    assert_eq!(said(part, whole), []);
    assert_eq!(said(&part.replace("10", "11"), whole), [("README.md".to_owned(), 2)]);
    assert_eq!(said("    phase     none\n", whole), [("README.md".to_owned(), 1)]);
}
