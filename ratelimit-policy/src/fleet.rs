//! A limit that the fleet holds together, and the arithmetic of its bound.
//!
//! Every host admits only while what it admitted and what it was told of the others stay within N. What it was not told
//! is bounded: each of the others says at once when it has `unheard` that it has not said, which is N/2H. So in a
//! window the fleet admits at most `N + (H-1) * unheard`, and what comes while a report is on its way.
//!
//! Why: take the host whose last exchange before its last admission is the latest of all. It knew what each other host
//! had admitted when that one last exchanged; since then each of those admitted at most `unheard`.

use std::fmt;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos, SECOND_NS};
use ratelimit_common::window::Parts;

use crate::labels;

/// The most hosts of a fleet.
pub const HOSTS_MAX: u32 = 1024;

/// The shortest time that the bound allows from the admission that is due to be said to the write in another host's
/// kernel. It holds for a store that answers within 5 ms.
pub const DELAY: Duration = Duration::from_millis(100);

/// The part of [`delay`] that does not depend on the store: two looks at the kernel, 20 ms each, and the hosts' own work.
const DELAY_OF_HOSTS: Duration = Duration::from_millis(80);

/// Round trips in [`delay`]: a report waits for the one before it, which was itself waiting, and each takes one more.
const TRIPS_OF_DELAY: u32 = 4;

/// The longest [`delay`] for which limits count as summed. Beyond it the store counts as away.
pub const DELAY_MAX: Duration = Duration::from_secs(1);

/// The time from the admission that is due to be said to the write in another host's kernel, at most. `round_trip` is the
/// longest that the store took to answer.
pub fn delay(round_trip: Duration) -> Duration {
    (DELAY_OF_HOSTS + round_trip * TRIPS_OF_DELAY).max(DELAY)
}

/// A window that is shorter than so many intervals gains little.
pub const INTERVALS_MIN: u64 = 30;

/// What of a source's traffic is summed over the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// What established connections proved: no forged packet at one host takes anything at another.
    Verified,
    /// All of it: a forged flood at one host takes its victim's share at all.
    All,
}

labels!(pub Sum { Verified => "verified", All => "all" });

/// One limit of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetLimit {
    /// What it is on every host alike: rule, unit, window, buckets; not the amount, which may change on one host first.
    pub identity: String,
    /// N.
    pub amount: u64,
    /// The length of its buckets.
    pub bucket_ns: u64,
    /// Full buckets before the current one that a sum takes in, at most 7; 0 for a fixed window.
    pub full_buckets: u8,
    /// What is summed.
    pub sum: Sum,
}

impl FleetLimit {
    /// Buckets of a sum, the current one among them.
    pub const fn buckets(&self) -> u64 {
        self.full_buckets as u64 + 1
    }

    /// The bucket of an instant.
    pub const fn bucket(&self, now: Nanos) -> BucketIndex {
        now.bucket(self.bucket_ns)
    }

    /// The least length of the window that the buckets stand for.
    pub const fn window_ns(&self) -> u64 {
        let full = if self.full_buckets == 0 { 1 } else { self.full_buckets as u64 };
        self.bucket_ns.saturating_mul(full)
    }

    /// Whether hosts whose clocks differ by `skew` can be summed: up to a quarter of a bucket.
    pub fn is_summed_at(&self, skew: Duration) -> bool {
        skew.as_nanos() <= u128::from(self.bucket_ns / 4)
    }
}

/// What follows from a limit and the number of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// N.
    pub amount: u64,
    /// H.
    pub hosts: u32,
    /// The kernel says when the count of a bucket crosses a multiple of this; a power of two.
    pub step: u64,
    /// The most of a window that a host has not said while exchanges succeed.
    pub unheard: u64,
    /// The most of a window that is lost where what the others admitted is put into units, bucket by bucket.
    pub rounding: u64,
}

impl Terms {
    /// The terms of a limit in a fleet of so many hosts.
    pub fn new(limit: &FleetLimit, hosts: u32) -> Self {
        let hosts = hosts.clamp(1, HOSTS_MAX);
        let share = (limit.amount / (2 * u64::from(hosts))).max(1);
        let least = match limit.sum {
            Sum::Verified => 1,
            // Sources that a flood sends once each never reach it.
            Sum::All => 2,
        };
        let step = previous_power_of_two((share / limit.buckets()).max(1)).max(least);
        // A source that never crosses a step is not said at all: less than a step in each bucket.
        let unheard = share.max(limit.buckets() * (step - 1));
        let unit = 1 << Parts::shared(limit.bucket_ns, limit.amount, 0).unit_bits();
        Self { amount: limit.amount, hosts, step, unheard, rounding: limit.buckets() * (unit - 1) }
    }

    /// The base-2 logarithm of the step: the bit above which the kernel compares counts.
    pub const fn step_shift(&self) -> u32 {
        self.step.trailing_zeros()
    }

    /// Whether a host that has not said `unsaid` says it at once, rather than at the next interval: where the next
    /// crossing, in this bucket or the next, may come too late.
    pub const fn is_urgent(&self, unsaid: u64) -> bool {
        unsaid > 0 && unsaid + 2 * self.step > self.unheard
    }

    /// Whether a sum is past half of the limit, where each crossing is said at once.
    pub const fn is_hot(&self, sum: u64) -> bool {
        sum >= self.amount / 2
    }

    /// The most that a window admits while exchanges succeed, but for what comes during a report's way.
    pub fn bound(&self) -> u64 {
        let others = u64::from(self.hosts - 1);
        let unknown = others.saturating_mul(self.unheard).saturating_add(self.rounding);
        self.amount.saturating_add(unknown).min(self.bound_alone())
    }

    /// The unit in which the kernel counts the others.
    pub const fn unit(&self, limit: &FleetLimit) -> u64 {
        self.rounding / limit.buckets() + 1
    }

    /// What a host keeps of the limit that no store can take, of so many percent.
    pub fn floor(&self, percent: u8) -> u64 {
        self.amount.saturating_mul(percent.into()).div_ceil(100).min(self.amount)
    }

    /// The most without a store: each host by itself.
    pub fn bound_alone(&self) -> u64 {
        self.amount.saturating_mul(u64::from(self.hosts))
    }

    /// A sum above this is garbage: more than all hosts together admit, whatever they are told.
    pub fn believable(&self) -> u64 {
        self.bound_alone()
    }
}

/// The bound in words, for `check-config`: with a store that is near.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(DELAY))
    }
}

impl Terms {
    /// The bound in words, where reports take up to `delay`. Hundredths of a second are rounded up.
    pub fn words(&self, delay: Duration) -> String {
        let Self { amount, hosts, unheard, rounding, .. } = self;
        if *hosts == 1 {
            return format!("at most {amount} on 1 host");
        }
        let others = hosts - 1;
        let rounded = if *rounding == 0 { String::new() } else { format!(" + {rounding}") };
        let hundredths = u32::try_from(delay.as_micros().div_ceil(10_000)).unwrap_or(u32::MAX);
        format!(
            "at most {amount} + {others}x{unheard}{rounded} + what is sent within {} s and the difference of clocks, over \
             {hosts} hosts; {hosts}x{amount} while the store is away",
            f64::from(hundredths) / 100.0
        )
    }
}

/// What `check-config` warns of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The window is short against the interval.
    ShortWindow {
        /// The window.
        window_ns: u64,
        /// The interval of reports.
        interval: Duration,
    },
}

impl Warning {
    /// What there is to say of a limit.
    pub fn of(limit: &FleetLimit, interval: Duration) -> Option<Self> {
        let window_ns = limit.window_ns();
        let short = u128::from(window_ns) < interval.as_nanos() * u128::from(INTERVALS_MIN);
        short.then_some(Self::ShortWindow { window_ns, interval })
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::ShortWindow { window_ns, interval } = self;
        #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
        let window = *window_ns as f64 / SECOND_NS as f64;
        write!(
            f,
            "its window of {window} s is shorter than {INTERVALS_MIN} intervals of {} s: hosts may hear of each other \
             too late, and each admits the whole limit then",
            interval.as_secs_f64()
        )
    }
}

/// What each key of the fleet `name` begins with in the store.
pub fn key_prefix(name: &str) -> String {
    format!("rl:{name}:")
}

/// The line of a Redis or Valkey ACL file that lets `user` do what the fleet `name` needs, and nothing more. Instead of
/// `PASSWORD` stands what is in `password_file`.
pub fn acl_line(user: &str, name: &str) -> String {
    let prefix = key_prefix(name);
    format!(
        "user {user} on >PASSWORD resetchannels ~{prefix}* -@all +eval +evalsha +hmget +hset +hgetall +hdel +pexpire \
         +xadd +xrange +time +ping +cluster|slots"
    )
}

/// Why a limit of GCRA is not shared, and what to do.
pub const GCRA_REFUSED: (&str, &str) = (
    "a limit with algorithm = \"gcra\" has no buckets to sum over the fleet",
    "use algorithm = \"buckets\", or keep the rule's limits to this host: fleet = false",
);

const fn previous_power_of_two(value: u64) -> u64 {
    1 << value.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand_in_five_minutes() -> FleetLimit {
        FleetLimit {
            identity: "default/requests".to_owned(),
            amount: 1000,
            bucket_ns: 60 * SECOND_NS,
            full_buckets: 5,
            sum: Sum::Verified,
        }
    }

    #[test]
    fn the_acl_line_names_the_fleets_keys_alone() {
        let line = acl_line("rl", "web");
        assert!(line.starts_with("user rl on >PASSWORD resetchannels ~rl:web:* -@all "), "{line}");
    }

    #[test]
    fn the_bound_is_said_in_words() {
        let terms = Terms::new(&thousand_in_five_minutes(), 4);
        assert_eq!(terms, Terms { amount: 1000, hosts: 4, step: 16, unheard: 125, rounding: 6 });
        assert_eq!(terms.bound(), 1381);
        assert_eq!(
            terms.to_string(),
            "at most 1000 + 3x125 + 6 + what is sent within 0.1 s and the difference of clocks, over 4 hosts; \
             4x1000 while the store is away"
        );
        assert_eq!(Terms::new(&thousand_in_five_minutes(), 1).to_string(), "at most 1000 on 1 host");
        let far = terms.words(Duration::from_micros(480_001));
        assert!(far.contains(" + what is sent within 0.49 s and "), "{far}");
        for (millis, printed) in [(1_840, "1.84"), (1_831, "1.84"), (100, "0.1"), (2_000, "2")] {
            let words = terms.words(Duration::from_millis(millis));
            assert!(words.contains(&format!(" within {printed} s ")), "{words}");
        }
    }

    #[test]
    fn the_delay_of_the_bound_grows_with_the_round_trip_to_the_store() {
        let at = |ms| delay(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 5, 6, 100, 230, 231].map(at), [100, 100, 104, 480, 1000, 1004]);
    }

    #[test]
    fn what_is_below_a_step_in_every_bucket_is_within_what_is_unheard() {
        for amount in [1, 2, 7, 10, 63, 64, 1000, 1_000_000] {
            for hosts in [1, 2, 3, 4, 10, 32] {
                for sum in [Sum::Verified, Sum::All] {
                    let limit = FleetLimit { amount, sum, ..thousand_in_five_minutes() };
                    let terms = Terms::new(&limit, hosts);
                    assert!(terms.step.is_power_of_two());
                    assert!(limit.buckets() * (terms.step - 1) <= terms.unheard, "{terms:?}");
                    assert!(terms.bound() <= amount * u64::from(hosts));
                }
            }
        }
    }

    #[test]
    fn a_flood_of_sources_that_send_once_never_reaches_a_step_where_all_is_summed() {
        let limit = FleetLimit { amount: 3, sum: Sum::All, ..thousand_in_five_minutes() };
        assert_eq!(Terms::new(&limit, 32).step, 2);
    }

    #[test]
    fn what_could_pass_the_bound_before_the_next_crossing_is_urgent() {
        let terms = Terms::new(&thousand_in_five_minutes(), 4);
        assert!(!terms.is_urgent(93));
        assert!(terms.is_urgent(94));
        assert!(!terms.is_hot(499));
        assert!(terms.is_hot(500));
    }

    #[test]
    fn a_quarter_of_a_bucket_is_the_most_that_clocks_may_differ() {
        let limit = thousand_in_five_minutes();
        assert!(limit.is_summed_at(Duration::from_secs(15)));
        assert!(!limit.is_summed_at(Duration::from_millis(15_001)));
    }

    #[test]
    fn a_window_shorter_than_thirty_intervals_is_warned_of() {
        let ten_seconds = FleetLimit { bucket_ns: 2 * SECOND_NS, ..thousand_in_five_minutes() };
        let warning = Warning::of(&ten_seconds, Duration::from_secs(1)).unwrap();
        assert!(warning.to_string().starts_with("its window of 10 s is shorter than 30 intervals of 1 s"), "{warning}");
        assert_eq!(Warning::of(&ten_seconds, Duration::from_millis(333)), None);
        assert_eq!(Warning::of(&thousand_in_five_minutes(), Duration::from_secs(1)), None);
    }
}
