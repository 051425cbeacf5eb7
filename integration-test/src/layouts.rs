//! What versions with other layouts of their maps leave on a host: the object and the contents of each, as they are kept
//! in `fixtures/layout-N`. `fixtures/README.md` says how each was made.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use ratelimit_datapath::kernel::{Contents, restore};

use crate::lab::Lab;

/// In the place of the laboratory's directory, in what a fixture has of files.
pub const PLACE: &str = "@DIRECTORY@";

/// What a daemon had been told before its maps were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`configuration`]
    Plain,
    /// The first of [`crate::crash::policies`], on `s0` and `s1`.
    Letters,
    /// The same, and the second of them is on trial.
    OnTrial,
    /// [`configuration`], and an IPv6 source is a /128.
    Wide,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Letters, Self::OnTrial, Self::Wide];

    /// The file of the maps.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Plain => "contents.json",
            Self::Letters => "letters.json",
            Self::OnTrial => "trial.json",
            Self::Wide => "wide.json",
        }
    }
}

/// The file of a trial's record, as the daemon had written it into its directory of state.
pub const RECORD: &str = "trial-record.json";

/// A layout's fixture.
pub struct Fixture {
    /// The BPF object, an ELF file without debugging information.
    pub object: Vec<u8>,
    /// What its maps held after real traffic.
    pub contents: Contents,
}

impl Fixture {
    /// That of this layout under [`configuration`].
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn of(layout: u32) -> Self {
        Self::of_kind(layout, Kind::Plain)
    }

    /// That of this layout.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn of_kind(layout: u32, kind: Kind) -> Self {
        let dir = directory(layout);
        let read =
            |file: &str| fs::read(dir.join(file)).unwrap_or_else(|error| panic!("{file} of layout {layout}: {error}"));
        let mut object = Vec::new();
        let packed = read("object.gz");
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut object).expect("the object is gzip");
        Self { object, contents: serde_json::from_slice(&read(kind.file())).expect("the contents are JSON") }
    }

    /// Puts it on `s0` of the laboratory's server, as a daemon of its version left it.
    pub fn restore(&self, lab: &Lab) {
        self.restore_on(lab, &["s0"]);
    }

    /// The same on these interfaces.
    pub fn restore_on(&self, lab: &Lab, interfaces: &[&str]) {
        let root = lab.pins();
        let restored = lab.server.inside(|| Ok(restore(&self.object, &self.contents, &root, interfaces)));
        restored.expect("the namespace is entered").unwrap_or_else(|error| panic!("{:#}", anyhow::Error::from(error)));
    }

    /// The entries of one map: keys, and what of their values is not zero.
    #[must_use]
    pub fn entries(&self, map: &str) -> Vec<(String, Vec<(usize, String)>)> {
        self.contents.maps[map].entries.clone()
    }
}

/// Puts the filter of a daemon whose trial runs on `s0` and `s1`, and its record of that into the laboratory's directory
/// of state. The trial has so long to go, by the clock of packets and on the wall.
///
/// # Panics
/// Where the layout has none.
pub fn restore_trial(lab: &Lab, layout: u32, left: Duration) {
    let path = directory(layout).join(RECORD);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let text = text.replace(PLACE, &lab.directory().to_string_lossy());
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("the record is JSON");
    let until: Timestamp = record["until"].as_str().and_then(|until| until.parse().ok()).expect("a trial has an end");
    let mut fixture = Fixture::of_kind(layout, Kind::OnTrial);
    // Packets meet the wall's time when their daemon was started.
    let now = until - left;
    fixture.contents.now_ns = u64::try_from(now.as_nanosecond()).expect("it is later than 1970");
    record["until"] = (Timestamp::now() + left).to_string().into();
    fixture.restore_on(lab, &["s0", "s1"]);
    let state = lab.directory().join("state");
    fs::create_dir_all(&state).expect("the directory of state");
    fs::write(state.join("trial.json"), record.to_string()).expect("the record is written");
}

/// Where a layout's fixture is.
#[must_use]
pub fn directory(layout: u32) -> PathBuf {
    fixtures().join(format!("layout-{layout}"))
}

/// The configuration of every fixture.
#[must_use]
pub fn configuration() -> PathBuf {
    fixtures().join("ratelimitd.toml")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}
