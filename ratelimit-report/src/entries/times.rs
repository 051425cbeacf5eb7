//! Durations in the notation of nft and ipset. Pure.

/// Maximum timeout of nft in seconds, 584 years. // nf_msecs_to_jiffies64, Linux 6.1
const NFT_SECONDS_MAX: i64 = 18_446_744_072;
const DAY_SECONDS: i64 = 86_400;

/// Formats a duration in days and seconds, because nft reads no number of more than eight digits.
pub(super) fn nft_time(seconds: i64) -> String {
    let seconds = seconds.min(NFT_SECONDS_MAX);
    match (seconds / DAY_SECONDS, seconds % DAY_SECONDS) {
        (0, seconds) => format!("{seconds}s"),
        (days, 0) => format!("{days}d"),
        (days, seconds) => format!("{days}d{seconds}s"),
    }
}

/// Parses a plain number of seconds, as in ipset, or nft's notation `1d2h3m4s`. In the latter the result is at least 1.
pub(super) fn seconds(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(seconds.into());
    }
    let mut sum: i64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest.get(..end)?.parse().ok()?;
        let after = rest.get(end..)?;
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = match after.get(..unit_end)? {
            "d" => 86_400,
            "h" => 3_600,
            "m" => 60,
            "s" => 1,
            "ms" => 0,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        rest = after.get(unit_end..)?;
    }
    Some(sum.max(1))
}
