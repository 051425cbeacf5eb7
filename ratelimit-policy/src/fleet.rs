//! Limits shared by a fleet, and the arithmetic of their bound.
//!
//! A host admits only while its own admissions and those that the others reported stay within N. The unreported part
//! is bounded: a host reports at once when it has `unheard` unreported admissions, which is N/2H. So in a window the
//! fleet admits at most `N + (H-1) * unheard`, plus what arrives while a report is in transit.
//!
//! Proof: take the host with the latest exchange before its last admission. It knew what each other host had admitted
//! at that host's last exchange. Since then each of those hosts admitted at most `unheard`.

use std::fmt;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos, SECOND_NS};
use ratelimit_common::window::Parts;

use crate::labels;

/// Maximum number of hosts in a fleet.
pub const HOSTS_MAX: u32 = 1024;

/// Minimum of [`delay`]: the time from an admission that must be reported to the write in another host's kernel. It
/// applies to a store that answers within 5 ms.
pub const DELAY: Duration = Duration::from_millis(100);

/// Part of [`delay`] that does not depend on the store: two reads of the kernel's counts, 20 ms each, and the hosts'
/// own work.
const DELAY_OF_HOSTS: Duration = Duration::from_millis(80);

/// Round trips in [`delay`]. A report waits for the report before it, which was itself waiting, and each takes one
/// more.
const TRIPS_OF_DELAY: u32 = 4;

/// Maximum [`delay`] at which limits count as summed. Above it, the store counts as unreachable.
pub const DELAY_MAX: Duration = Duration::from_secs(1);

/// Returns the maximum time from an admission that must be reported to the write in another host's kernel.
/// `round_trip` is the longest answer time of the store.
pub fn delay(round_trip: Duration) -> Duration {
    (DELAY_OF_HOSTS + round_trip * TRIPS_OF_DELAY).max(DELAY)
}

/// Minimum length of a window in report intervals. Shorter windows gain little from sharing.
pub const INTERVALS_MIN: u64 = 30;

/// Traffic of a source that is summed over the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Traffic of verified connections. A forged packet at one host uses no budget at another.
    Verified,
    /// All traffic. A forged flood at one host uses its victim's budget at all hosts.
    All,
}

labels!(pub Sum { Verified => "verified", All => "all" });

/// A limit that the hosts of a fleet share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetLimit {
    /// Name of the limit, equal on every host: rule, unit, window and buckets. The amount is left out, because it may
    /// change on one host first.
    pub identity: String,
    /// Amount of the limit, N in the bound.
    pub amount: u64,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// Number of full buckets before the current one that a sum includes, at most 7. 0 for a fixed window.
    pub full_buckets: u8,
    /// Traffic that is summed.
    pub sum: Sum,
}

impl FleetLimit {
    /// Returns the number of buckets in a sum, including the current one.
    pub const fn buckets(&self) -> u64 {
        self.full_buckets as u64 + 1
    }

    /// Returns the index of the bucket at `now`.
    pub const fn bucket(&self, now: Nanos) -> BucketIndex {
        now.bucket(self.bucket_ns)
    }

    /// Returns the minimum length in nanoseconds of the window that the buckets cover.
    pub const fn window_ns(&self) -> u64 {
        let full = if self.full_buckets == 0 { 1 } else { self.full_buckets as u64 };
        self.bucket_ns.saturating_mul(full)
    }

    /// Returns true if hosts with a clock difference of `skew` can be summed. The maximum is a quarter of a bucket.
    pub fn is_summed_at(&self, skew: Duration) -> bool {
        skew.as_nanos() <= u128::from(self.bucket_ns / 4)
    }
}

/// Parameters that follow from a limit and the number of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Amount of the limit, N in the bound.
    pub amount: u64,
    /// Number of hosts, H in the bound.
    pub hosts: u32,
    /// Step between reports, a power of two. The kernel reports when the count of a bucket crosses a multiple.
    pub step: u64,
    /// Maximum unreported admissions of a host in a window, while exchanges succeed.
    pub unheard: u64,
    /// Maximum rounding error in a window. The counts of other hosts are rounded to units, bucket by bucket.
    pub rounding: u64,
}

impl Terms {
    /// Returns the terms of a limit in a fleet of `hosts` hosts.
    pub fn new(limit: &FleetLimit, hosts: u32) -> Self {
        let hosts = hosts.clamp(1, HOSTS_MAX);
        let share = (limit.amount / (2 * u64::from(hosts))).max(1);
        let least = match limit.sum {
            Sum::Verified => 1,
            // Flood sources that send one packet each never reach a step of 2.
            Sum::All => 2,
        };
        let step = previous_power_of_two((share / limit.buckets()).max(1)).max(least);
        // A source that never crosses a step is not reported: less than a step in each bucket.
        let unheard = share.max(limit.buckets() * (step - 1));
        let unit = 1 << Parts::shared(limit.bucket_ns, limit.amount, 0).unit_bits();
        Self { amount: limit.amount, hosts, step, unheard, rounding: limit.buckets() * (unit - 1) }
    }

    /// Returns the base-2 logarithm of the step: the lowest bit of a count that the kernel compares.
    pub const fn step_shift(&self) -> u32 {
        self.step.trailing_zeros()
    }

    /// Returns true if a host must report `unsaid` admissions at once instead of at the next interval. The next
    /// crossing, in this bucket or the next, could otherwise come too late.
    pub const fn is_urgent(&self, unsaid: u64) -> bool {
        unsaid > 0 && unsaid + 2 * self.step > self.unheard
    }

    /// Returns true if a sum has reached half of the limit, from where each crossing is reported at once.
    pub const fn is_hot(&self, sum: u64) -> bool {
        sum >= self.amount / 2
    }

    /// Returns the maximum admissions in a window while exchanges succeed, without those during a report's transit.
    pub fn bound(&self) -> u64 {
        let others = u64::from(self.hosts - 1);
        let unknown = others.saturating_mul(self.unheard).saturating_add(self.rounding);
        self.amount.saturating_add(unknown).min(self.bound_alone())
    }

    /// Returns the unit in which the kernel counts the admissions of other hosts.
    pub const fn unit(&self, limit: &FleetLimit) -> u64 {
        self.rounding / limit.buckets() + 1
    }

    /// Returns the part of the limit that a host keeps whatever the store reports: `percent`, rounded up.
    pub fn floor(&self, percent: u8) -> u64 {
        self.amount.saturating_mul(percent.into()).div_ceil(100).min(self.amount)
    }

    /// Returns the maximum admissions in a window without a store, when each host admits the whole limit.
    pub fn bound_alone(&self) -> u64 {
        self.amount.saturating_mul(u64::from(self.hosts))
    }

    /// Returns the maximum plausible sum. All hosts together cannot admit more, so a larger one is discarded.
    pub fn believable(&self) -> u64 {
        self.bound_alone()
    }
}

/// The bound in words, for `check-config`, with a nearby store.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(DELAY))
    }
}

impl Terms {
    /// Returns the bound in words, for reports that take up to `delay`. Hundredths of a second are rounded up.
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

/// A warning of `check-config` about a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The window is short compared with the report interval.
    ShortWindow {
        /// Length of the window in nanoseconds.
        window_ns: u64,
        /// Interval of reports that are not urgent.
        interval: Duration,
    },
}

impl Warning {
    /// Returns the warning for a limit, if there is one.
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
            "its window of {window} s is shorter than {INTERVALS_MIN} intervals of {} s: reports may arrive too late, \
             and then each host admits the whole limit",
            interval.as_secs_f64()
        )
    }
}

/// Returns the prefix of the store's keys for the fleet `name`.
pub fn key_prefix(name: &str) -> String {
    format!("rl:{name}:")
}

/// Returns the line of a Redis or Valkey ACL file that gives `user` exactly the rights that the fleet `name` needs.
/// `PASSWORD` stands for the contents of `password_file`.
pub fn acl_line(user: &str, name: &str) -> String {
    let prefix = key_prefix(name);
    format!(
        "user {user} on >PASSWORD resetchannels ~{prefix}* -@all +eval +evalsha +hmget +hset +hgetall +hdel +pexpire \
         +xadd +xrange +time +ping +cluster|slots"
    )
}

/// The reason why a limit with GCRA is not shared, and the help.
pub const GCRA_REFUSED: (&str, &str) = (
    "a limit with algorithm = \"gcra\" has no buckets that the fleet can sum",
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
    fn counts_below_a_step_in_every_bucket_stay_within_the_unheard_share() {
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
    fn a_count_that_could_pass_the_bound_before_the_next_crossing_is_urgent() {
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
