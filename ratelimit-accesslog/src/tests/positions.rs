//! The file of positions.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::{FilePosition, Position, Positions, PositionsError};

fn some() -> BTreeMap<String, Position> {
    let file = FilePosition {
        device: u64::MAX,
        inode: 7,
        offset: 1 << 60,
        is_mid_line: true,
        head_len: 256,
        head_hash: u64::MAX - 1,
    };
    let position = Position { files: vec![file], modified_ns: 1_800_000_000_000_000_000 };
    BTreeMap::from([("/var/log/nginx/access.log".into(), position), ("other".into(), Position::default())])
}

#[test]
fn positions_are_read_as_they_were_written() {
    let directory = tempfile::tempdir().unwrap();
    let positions = Positions::new(directory.path().join("access-log.json"));
    assert_eq!(positions.load().unwrap(), BTreeMap::new());
    positions.save(some()).unwrap();
    assert_eq!(positions.load().unwrap(), some());
    positions.save(BTreeMap::new()).unwrap();
    assert_eq!(positions.load().unwrap(), BTreeMap::new());
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["access-log.json"]);
    let mode = fs::metadata(directory.path().join("access-log.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_document_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access-log.json");
    let positions = Positions::new(path.clone());
    positions.save(some()).unwrap();
    let text = fs::read(&path).unwrap();
    let half = text[..text.len() / 2].to_vec();
    let newer = String::from_utf8(text).unwrap().replace("\"version\": 1", "\"version\": 2").into_bytes();
    for damaged in [half, newer, Vec::new(), vec![b' '; 2 << 20], b"\xff\0".to_vec()] {
        fs::write(&path, damaged).unwrap();
        assert!(matches!(positions.load(), Err(PositionsError::Damaged { .. })));
    }
    positions.save(some()).unwrap();
    assert_eq!(positions.load().unwrap(), some());
}

#[test]
fn a_write_that_fails_leaves_the_former_document() {
    let directory = tempfile::tempdir().unwrap();
    let positions = Positions::new(directory.path().join("access-log.json"));
    positions.save(some()).unwrap();
    // A directory in the new file's place makes the write fail, for root too.
    fs::create_dir(directory.path().join("access-log.json.new")).unwrap();
    assert!(positions.save(BTreeMap::new()).is_err());
    assert_eq!(positions.load().unwrap(), some());
}

#[test]
fn an_unfinished_file_and_a_link_are_not_written_through() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access-log.json");
    let victim = directory.path().join("victim");
    File::create(&victim).unwrap();
    symlink(&victim, directory.path().join("access-log.json.new")).unwrap();
    symlink(&victim, &path).unwrap();
    let positions = Positions::new(path);
    assert!(matches!(positions.load(), Err(PositionsError::Io { .. })));
    positions.save(some()).unwrap();
    assert_eq!(positions.load().unwrap(), some());
    assert_eq!(fs::metadata(victim).unwrap().len(), 0);
}
