//! Remains of versions with other map layouts: the object and the map contents of each, stored in `fixtures/layout-N`.
//! `fixtures/README.md` says how each was made.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use ratelimit_common::layout::VERSION;
use ratelimit_kernel::{Contents, restore};

use crate::lab::Lab;

/// Layout before today's: the one that is taken over.
pub const EARLIER: u32 = VERSION - 1;

/// Placeholder for the laboratory's directory in a fixture's files.
pub const PLACE: &str = "@DIRECTORY@";

/// Configuration of the daemon before its maps were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file that [`configuration`] returns.
    Plain,
    /// The first of [`crate::crash::policies`], on `s0` and `s1`.
    Letters,
    /// The first of [`crate::crash::policies`], with the second one on trial.
    OnTrial,
    /// The file that [`configuration`] returns, with an IPv6 source of a /128.
    Wide,
}

impl Kind {
    /// Every kind of configuration.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Letters, Self::OnTrial, Self::Wide];

    /// Returns the name of the file with the maps.
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

/// Name of a trial's record, as the daemon wrote it into its state directory.
pub const RECORD: &str = "trial-record.json";

/// A layout's object and map contents.
pub struct Fixture {
    /// The BPF object, an ELF file without debugging information.
    pub object: Vec<u8>,
    /// Contents of the maps after real traffic.
    pub contents: Contents,
}

impl Fixture {
    /// Returns the fixture of this layout and kind.
    ///
    /// # Panics
    /// Panics if there is none.
    #[must_use]
    pub fn of(layout: u32, kind: Kind) -> Self {
        let dir = directory(layout);
        let read =
            |file: &str| fs::read(dir.join(file)).unwrap_or_else(|error| panic!("{file} of layout {layout}: {error}"));
        let mut object = Vec::new();
        let packed = read("object.gz");
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut object).expect("the object is gzip");
        Self { object, contents: serde_json::from_slice(&read(kind.file())).expect("the contents are JSON") }
    }

    /// Restores the fixture on `s0` of the laboratory's server, as a daemon of its version left it.
    pub fn restore(&self, lab: &Lab) {
        self.restore_on(lab, &["s0"]);
    }

    /// Restores the fixture on these interfaces.
    pub fn restore_on(&self, lab: &Lab, interfaces: &[&str]) {
        let root = lab.pins();
        let restored = lab.server.inside(|| Ok(restore(&self.object, &self.contents, &root, interfaces)));
        restored.expect("the namespace is entered").unwrap_or_else(|error| panic!("{:#}", anyhow::Error::from(error)));
    }

    /// Returns the entries of one map: keys, and the non-zero parts of their values.
    #[must_use]
    pub fn entries(&self, map: &str) -> Vec<(String, Vec<(usize, String)>)> {
        self.contents.maps[map].entries.clone()
    }
}

/// Restores the filter of an [`EARLIER`] daemon with a running trial on `s0` and `s1`, and its record in the
/// laboratory's state directory. The trial ends after `left`, both by the clock of packets and by the wall clock.
///
/// # Panics
/// Panics if the layout has no such record.
pub fn restore_trial(lab: &Lab, left: Duration) {
    let path = directory(EARLIER).join(RECORD);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let text = text.replace(PLACE, &lab.directory().to_string_lossy());
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("the record is JSON");
    let until: Timestamp = record["until"].as_str().and_then(|until| until.parse().ok()).expect("a trial has an end");
    let mut fixture = Fixture::of(EARLIER, Kind::OnTrial);
    // Packets meet the wall-clock time at which their daemon was started.
    let now = until - left;
    fixture.contents.now_ns = u64::try_from(now.as_nanosecond()).expect("it is later than 1970");
    record["until"] = (Timestamp::now() + left).to_string().into();
    fixture.restore_on(lab, &["s0", "s1"]);
    let state = lab.directory().join("state");
    fs::create_dir_all(&state).expect("the directory of state");
    fs::write(state.join("trial.json"), record.to_string()).expect("the record is written");
}

/// Returns the directory of a layout's fixture.
#[must_use]
pub fn directory(layout: u32) -> PathBuf {
    fixtures().join(format!("layout-{layout}"))
}

/// Returns the path of the configuration of every fixture.
#[must_use]
pub fn configuration() -> PathBuf {
    fixtures().join("ratelimitd.toml")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}
