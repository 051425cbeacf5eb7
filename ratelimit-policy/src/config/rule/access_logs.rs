//! Access logs of a rule.

use super::super::access_log;
use super::super::written::Source;
use super::RuleSettings;
use crate::desired::{AccessLog, Limit};
use crate::diagnostic::Found;

impl RuleSettings {
    /// Returns the rule's access logs without duplicates. Only limits of requests per source can use them, so any
    /// other use is an error.
    pub(super) fn access_logs(
        &self,
        [limits, shadow_limits]: [&[Limit]; 2],
        source: &Source,
        found: &mut Found,
    ) -> Vec<AccessLog> {
        let mut logs = Vec::new();
        let written = self.values.all("access_log");
        for written in written {
            let log = found.keep(source.read(written, access_log::parse));
            logs.extend(log.filter(|log| !logs.contains(log)));
        }
        let Some(last) = written.last() else {
            for (limits, key) in [(limits, "limits"), (shadow_limits, "shadow_limits")] {
                let conditioned = limits.iter().find(|limit| limit.condition.is_some());
                if let (Some(limit), Some(first)) = (conditioned, self.values.all(key).first()) {
                    found.push(source.wrong(first, access_log::no_log(limit, &first.text)));
                }
            }
            return logs;
        };
        if logs.len() > access_log::LOGS_MAX {
            found.push(source.wrong(last, access_log::too_many(&last.text)));
        } else if !limits.is_empty() && !limits.iter().any(Limit::is_reconciled) {
            found.push(source.wrong(last, access_log::no_limit(&last.text)));
        }
        logs
    }
}
