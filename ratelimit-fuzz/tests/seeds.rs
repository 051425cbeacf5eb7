//! Runs every target on its seeds, whole and truncated. The seeds are libFuzzer's initial corpus and its earlier finds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ratelimit_fuzz::TARGETS;

#[test]
fn no_target_panics_on_its_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let names = |directory: &Path| -> BTreeSet<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(&seeds), TARGETS.iter().map(|target| target.name.to_owned()).collect());
    let mut inputs = 0;
    for target in TARGETS {
        let directory = seeds.join(target.name);
        let files = names(&directory);
        assert!(!files.is_empty(), "{}", target.name);
        for file in files {
            let bytes = fs::read(directory.join(file)).unwrap();
            for end in (0..=bytes.len()).rev().step_by(1 + bytes.len() / 16) {
                (target.run)(&bytes[..end]);
                inputs += 1;
            }
        }
    }
    println!("{inputs} inputs of {} targets", TARGETS.len());
}
