//! Tier of the documents as a book, which must be built without a dead link.

use std::time::Instant;

use super::harness::Tally;
use super::summary::Tier;
use crate::{book, setup};

const TEST: &str = "the_book_has_every_document_and_no_dead_link";

pub(super) fn book(filter: Option<&str>) -> Tier {
    let start = Instant::now();
    let mut tally = Tally::default();
    if filter.is_none_or(|filter| TEST.contains(filter)) {
        let word = match setup::mdbook::ensure() {
            Err(error) => format!("ignored, {error:#}"),
            Ok(mdbook) => match book::build(&mdbook) {
                Ok(_) => "ok".to_owned(),
                Err(error) => {
                    println!("{error:#}");
                    "FAILED".to_owned()
                }
            },
        };
        println!("test {TEST} ... {word}");
        tally.take(&format!("test {TEST} ... {word}"));
    }
    Tier { name: "book", tally, took: start.elapsed() }
}
