//! Fuzz targets for access logs as the daemon reads them: the requests that lines describe, and the charges that
//! follow.

use ratelimit_accesslog::{Reconciler, Settings};
use ratelimit_policy::desired::{Condition, PathPattern, STATUS_MAX, Statuses};
use ratelimit_report::replay::log::{Asked, Parser};

use crate::files::clock;

const SECOND_NS: u64 = 1_000_000_000;
/// Number of bytes that encode one step of the reconciler.
const STEP_BYTES: usize = 4;

/// Reads the bytes as lines, and again as steps of a reconciler.
pub(crate) fn access_log(bytes: &[u8]) {
    lines(bytes);
    reconcile(bytes);
}

/// Parses each line. Checks that a condition matches in each of its written forms.
fn lines(bytes: &[u8]) {
    let mut parser = Parser::new(clock());
    for line in bytes.split(|byte| *byte == b'\n') {
        let _source = parser.direct(line);
        let asked = Asked::of(line);
        let request = asked.request();
        let Some(target) = request.target else { continue };
        let path = target.split(['?', '#', '*']).next().unwrap_or_default();
        let Some(pattern) = PathPattern::new(path) else { continue };
        assert_eq!(PathPattern::new(&pattern.to_string()), Some(pattern), "{path:?}");
        assert!(pattern.matches(path), "{path:?}");
        let mut statuses = Statuses::default();
        (0..=STATUS_MAX).for_each(|status| statuses.add(status));
        let of_path = Condition { path: Some(pattern), ..Condition::default() };
        let of_both = Condition { statuses: Some(statuses), ..of_path };
        assert!(!of_both.is_met_by(request) || of_path.is_met_by(request), "{request:?}");
    }
}

/// Checks that no more is charged than lines were logged, and that multiplicities stay within their bound.
fn reconcile(bytes: &[u8]) {
    let settings = Settings { sources_max: 3, amount: 20, charged_in: 2, ..Settings::new(SECOND_NS, 5) };
    let (mut reconciler, mut now) = (Reconciler::new(settings), 100 * SECOND_NS);
    let mut counts = [0_u64; 4];
    for step in bytes.chunks_exact(STEP_BYTES) {
        let (key, number) = (step[1] % 4, u64::from(step[3]));
        now += u64::from(step[2]) * SECOND_NS / 50;
        let count = &mut counts[usize::from(key)];
        let mut lines = 0;
        match step[0] % 4 {
            0 => lines = number,
            1 => *count += number,
            2 => reconciler.forget(key),
            _ => {}
        }
        let bucket = reconciler.bucket(now);
        let charged = reconciler.settle(key, now, lines, &[(bucket, *count)]);
        *count += charged * 2;
        assert!(charged <= lines, "{charged} of {lines}");
        if step[0] & 0x80 != 0 && charged > 0 {
            reconciler.not_charged(key, bucket, charged);
        }
        assert!(reconciler.sources() <= settings.sources_max);
        let multiplicity = reconciler.multiplicity(key, now);
        assert!((1..=settings.multiplicity_max).contains(&multiplicity), "{multiplicity}");
    }
}
