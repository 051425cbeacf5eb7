//! Interfaces that see the same packets, detected while the daemon runs. A start refuses them, so one must have
//! appeared later or become a port since. Knows no datapath: links are arguments.
//!
//! Attached interfaces stay attached, because detaching might leave packets unlimited. Other interfaces wait.

use ratelimit_datapath::path::{self, Link, SharedPath};

/// Pairs of interfaces at the last look.
#[derive(Debug, Default)]
pub(super) struct Paths {
    shared: Vec<SharedPath>,
    /// Text to configure instead of all named interfaces.
    instead: String,
    /// Pairs that were reported to count twice.
    told: Vec<SharedPath>,
}

impl Paths {
    /// Finds the pairs among the named interfaces. `write` formats interfaces in the configuration's syntax.
    pub(super) fn look(&mut self, named: &[String], links: &[Link], write: impl Fn(&[String]) -> String) {
        self.shared = path::shared(named, links);
        self.instead = if self.shared.is_empty() { String::new() } else { write(&path::instead(named, links)) };
    }

    /// Returns the reason why an interface must not be attached beside these.
    pub(super) fn obstacle(&self, interface: &str, attached: &[String]) -> Option<String> {
        let pair = self.shared.iter().find(|of| attached.iter().any(|other| of.joins(interface, other)))?;
        Some(self.words(pair))
    }

    /// Returns each attached interface that counts packets of another one again, with a sentence on it.
    pub(super) fn counted_twice<'a>(&'a self, attached: &'a [String]) -> impl Iterator<Item = (&'a String, String)> {
        self.twice(attached).map(|pair| (&pair.upper, self.words(pair)))
    }

    /// Logs what has changed since the last call.
    pub(super) fn tell(&mut self, attached: &[String]) {
        let now: Vec<SharedPath> = self.twice(attached).cloned().collect();
        for pair in now.iter().filter(|pair| !self.told.contains(pair)) {
            tracing::error!("PACKETS COUNT TWICE: {}", self.words(pair));
        }
        for SharedPath { lower, upper, .. } in self.told.iter().filter(|pair| !now.contains(pair)) {
            tracing::info!("packets at {lower} and {upper} count once again");
        }
        self.told = now;
    }

    fn twice<'a>(&'a self, attached: &'a [String]) -> impl Iterator<Item = &'a SharedPath> {
        self.shared.iter().filter(|pair| attached.contains(&pair.lower) && attached.contains(&pair.upper))
    }

    fn words(&self, pair: &SharedPath) -> String {
        format!("{}; write {}, then start again", pair.words(), self.instead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(master: Option<u32>) -> Vec<Link> {
        let link = |name: &str, index, kind: Option<&str>, master| Link {
            name: name.to_owned(),
            index,
            kind: kind.map(str::to_owned),
            master,
            lower: None,
        };
        vec![link("eth0", 1, None, master), link("br0", 2, Some("bridge"), None)]
    }

    #[test]
    fn a_port_of_a_limited_bridge_waits_and_attached_pairs_are_reported() {
        let named = ["eth0".to_owned(), "br0".to_owned()];
        let mut paths = Paths::default();
        paths.look(&named, &links(None), path::as_key);
        assert_eq!((paths.obstacle("eth0", &named[1..]), paths.counted_twice(&named).count()), (None, 0));
        paths.look(&named, &links(Some(2)), path::as_key);
        let why = paths.obstacle("br0", &named[..1]).unwrap();
        assert!(why.contains("would count twice; write interfaces = [\"eth0\"]"), "{why}");
        assert_eq!(paths.obstacle("br0", &[]), None, "where the other is not attached, this one counts once");
        let twice: Vec<_> = paths.counted_twice(&named).map(|(name, _)| name.as_str()).collect();
        assert_eq!((twice, paths.counted_twice(&named[1..]).count()), (vec!["br0"], 0));
    }
}
