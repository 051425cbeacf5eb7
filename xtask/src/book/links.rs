//! Links of a book: finds those in its pages that lead to no file or to no place in a page. Knows HTML as mdBook
//! writes it, and no addresses of other sites.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use regex_lite::Regex;

/// Page that servers show for any address, so its own place is unknown.
const OF_NO_PLACE: &str = "404.html";

/// Files of a book, and the places within its pages.
struct Book {
    files: BTreeSet<String>,
    /// Text and identifiers of each page.
    pages: BTreeMap<String, (String, BTreeSet<String>)>,
}

/// Number of checked links, and a line for each dead one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pages: usize,
    pub(super) links: usize,
    pub(super) dead: Vec<String>,
}

/// Checks all links between the files below a directory.
pub(super) fn check(book: &Path) -> Result<Found> {
    let read = Book::read(book)?;
    let link = Regex::new(r#"\s(?:href|src)="([^"]*)""#)?;
    let mut found = Found { pages: read.pages.len(), ..Found::default() };
    for (page, (text, _)) in read.pages.iter().filter(|(page, _)| *page != OF_NO_PLACE) {
        for target in link.captures_iter(text).filter_map(|found| found.get(1)) {
            let target = plain(target.as_str());
            if is_elsewhere(&target) {
                continue;
            }
            found.links += 1;
            if !read.has(page, &target) {
                found.dead.push(format!("{page}: {target}"));
            }
        }
    }
    found.dead.dedup();
    Ok(found)
}

impl Book {
    fn read(root: &Path) -> Result<Self> {
        let mut book = Self { files: BTreeSet::new(), pages: BTreeMap::new() };
        book.add(root, "")?;
        Ok(book)
    }

    /// Adds the files of a directory, with the path from the root before each name.
    fn add(&mut self, directory: &Path, before: &str) -> Result<()> {
        let id = Regex::new(r#"\sid="([^"]*)""#)?;
        let entries = fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("read {}", directory.display()))?;
            let (path, name) = (entry.path(), format!("{before}{}", entry.file_name().to_string_lossy()));
            if path.is_dir() {
                self.add(&path, &format!("{name}/"))?;
                continue;
            }
            if name.ends_with(".html") {
                let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                let ids = id.captures_iter(&text).filter_map(|found| Some(plain(found.get(1)?.as_str()))).collect();
                self.pages.insert(name.clone(), (text, ids));
            }
            self.files.insert(name);
        }
        Ok(())
    }

    /// Returns true if a page's link leads to a file, and to a place in it if the link names one.
    fn has(&self, page: &str, target: &str) -> bool {
        let (file, place) = target.split_once('#').unwrap_or((target, ""));
        let directory = page.rsplit_once('/').map_or("", |(directory, _)| directory);
        let file = if file.is_empty() { page.to_owned() } else { crate::markdown::joined(directory, file) };
        let has_place = || self.pages.get(&file).is_some_and(|(_, ids)| ids.contains(place));
        self.files.contains(&file) && (place.is_empty() || has_place())
    }
}

/// Returns true for a link to another site, or to no place at all.
fn is_elsewhere(target: &str) -> bool {
    target.is_empty() || ["http:", "https:", "mailto:", "data:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns the text of an attribute, without HTML's and addresses' escapes.
fn plain(attribute: &str) -> String {
    let text = attribute.replace("&quot;", "\"").replace("&#39;", "'").replace("&#x27;", "'").replace("&amp;", "&");
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = if *first == b'%' { after.get(..2).and_then(|code| std::str::from_utf8(code).ok()) } else { None };
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the dead links of a book with one more page, `docs/page.html`.
    fn dead(page: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("index.html", "<h1 id=\"here\">Here</h1>");
        write("docs/other.html", "<h2 id=\"what-s-new\">a</h2><h2 class=\"x\" id=\"größe\">b</h2>");
        write("docs/picture.svg", "<svg/>");
        write("404.html", "<a href=\"none.html\">");
        write("docs/page.html", page);
        let found = check(directory.path()).unwrap();
        assert_eq!(found.pages, 4);
        found.dead
    }

    #[test]
    fn a_link_leads_to_a_file_and_to_a_place_in_it() {
        for good in [
            "other.html",
            "other.html#what-s-new",
            "other.html#gr%C3%B6%C3%9Fe",
            "../index.html#here",
            "#own",
            "#",
            "picture.svg",
            "https://example.org/none.html",
            "mailto:a@example.org",
        ] {
            assert_eq!(dead(&format!("<p id=\"own\"><a class=\"b\" href=\"{good}\">a</a>")), [""; 0], "{good}");
        }
    }

    #[test]
    fn a_link_to_no_file_or_place_is_dead() {
        for bad in ["none.html", "other.html#none", "#none", "index.html", "../docs", "picture.svg#place"] {
            assert_eq!(dead(&format!("<a href=\"{bad}\">")), [format!("docs/page.html: {bad}")], "{bad}");
        }
        assert_eq!(dead("<img alt=\"a\" src=\"none.png\">"), ["docs/page.html: none.png"]);
    }
}
