//! Check of the configuration file, by the results of `check-config`.

use crate::facts::ConfigFile;
use crate::finding::{Finding, Subject};

const ABOUT: &str = "configuration";

pub(crate) fn all(file: &ConfigFile) -> Vec<Finding> {
    let subject = Subject::new(
        ABOUT,
        "configuration.file",
        "a service with a bad file does not start, and keeps the old one on reload",
    );
    match file {
        ConfigFile::Missing(path) => vec![subject.warning(
            format!("there is no {}", path.display()),
            format!("write one, then ratelimitd check-config {}; flags in the foreground need none", path.display()),
        )],
        ConfigFile::Unreadable(path, why) => {
            vec![subject.unknown(format!("{} cannot be read: {why}", path.display()), super::AS_ROOT)]
        }
        ConfigFile::Bad(path, why) => {
            let seen = format!("{} is refused: {why}", path.display());
            vec![subject.problem(seen, format!("ratelimitd check-config {}", path.display()))]
        }
        ConfigFile::Good(path, _, warnings) => {
            let warned =
                Subject::new(ABOUT, "configuration.warning", "the file is valid, but may not do what was intended");
            let mend = format!("ratelimitd check-config {}", path.display());
            [subject.ok(format!("{} is good", path.display()))]
                .into_iter()
                .chain(warnings.iter().map(|warning| warned.warning(warning.clone(), mend.clone())))
                .collect()
        }
    }
}
