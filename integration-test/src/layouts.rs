//! What versions with other layouts of their maps leave on a host: the object and the contents of each, as they are kept
//! in `fixtures/layout-N`.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ratelimit_datapath::kernel::{Contents, restore};

use crate::lab::Lab;

/// A layout's fixture.
pub struct Fixture {
    /// The BPF object, an ELF file without debugging information.
    pub object: Vec<u8>,
    /// What its maps held after real traffic.
    pub contents: Contents,
}

impl Fixture {
    /// That of this layout.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn of(layout: u32) -> Self {
        let dir = directory(layout);
        let read =
            |file: &str| fs::read(dir.join(file)).unwrap_or_else(|error| panic!("{file} of layout {layout}: {error}"));
        let mut object = Vec::new();
        let packed = read("object.gz");
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut object).expect("the object is gzip");
        Self { object, contents: serde_json::from_slice(&read("contents.json")).expect("the contents are JSON") }
    }

    /// Puts it on `s0` of the laboratory's server, as a daemon of its version left it.
    pub fn restore(&self, lab: &Lab) {
        let (root, object, contents) = (lab.pins(), self.object.clone(), self.contents.clone());
        let restored = lab.server.inside(|| Ok(restore(&object, &contents, &root, "s0")));
        restored.expect("the namespace is entered").unwrap_or_else(|error| panic!("{:#}", anyhow::Error::from(error)));
    }

    /// The entries of one map: keys, and what of their values is not zero.
    #[must_use]
    pub fn entries(&self, map: &str) -> Vec<(String, Vec<(usize, String)>)> {
        self.contents.maps[map].entries.clone()
    }
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
