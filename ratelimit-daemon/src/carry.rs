//! Implementation of each control command: one row maps the command's arguments to an engine method. A command
//! without a row fails to compile.

use std::sync::Arc;

use super::engine::Engine;
use super::fleet::Reach;
use super::moment::Moment;
use ratelimit_control::proto::{
    AcceptList, Allow, ApplyRequest, ChargeRequest, Confirm, Deny, Detach, Explain, FleetStatus, Healthz, Import,
    ModeRequest, PrefixRequest, Problem, ReloadRequest, Rollback, SourceRequest, StandingOf, Stats, Suggest,
    UnblockRequest,
};
use ratelimit_control::{Call, Carry, Requester};
use ratelimit_datapath::Datapath;
use ratelimit_policy::desired::Grant;

/// Implements [`Carry`] for each row. A row has the command, then the closure over the engine, the arguments, the
/// requester and the moment.
macro_rules! carry {
    ($($call:ty: |$engine:ident, $arguments:pat, $by:pat, $moment:pat_param| $does:expr;)*) => {
        $(impl<D: Datapath> Carry<$call, Moment> for Engine<D> {
            fn carry(
                &mut self,
                $arguments: $call,
                $by: &Requester,
                $moment: Moment,
            ) -> Result<<$call as Call>::Report, Problem> {
                let $engine = self;
                $does
            }
        })*
    };
}

carry! {
    // Commands that report or charge by rules need the policy that currently judges packets.
    Stats: |engine, call, _, moment| engine.up_to_date().stats(&call, moment).map(Arc::unwrap_or_clone);
    Healthz: |engine, _, _, moment| Ok(engine.supervise(moment).health());
    Suggest: |engine, call, _, moment| engine.suggest(call.rule.as_deref(), moment);
    Explain: |engine, call, _, _| engine.up_to_date().explain(&call.sent()?);
    FleetStatus: |engine, _, _, moment| engine.fleet_report(moment);
    StandingOf: |engine, call, _, _| engine.up_to_date().standing(call.ip, &call.rule);
    ChargeRequest: |engine, request, by, moment| engine.up_to_date().charge(&request, by, moment);
    Allow: |engine, Allow(request), by, moment| engine.grant(Grant::Exempt, request.target()?, &request, by, moment);
    Deny: |engine, Deny(request), by, moment| engine.grant(Grant::Denied, request.target()?, &request, by, moment);
    Import: |engine, request, by, moment| engine.import(&request, by, moment);
    UnblockRequest: |engine, request, by, moment| engine.unblock_for(&request, by, moment);
    PrefixRequest: |engine, request, by, moment| engine.unallow(request.target()?, Reach::of(request.fleet), by, moment);
    SourceRequest: |engine, request, by, moment| engine.reset(&request, by, moment);
    ModeRequest: |engine, request, by, moment| engine.set_mode(request.mode, by, moment);
    ApplyRequest: |engine, request, by, moment| engine.apply_by(&request, by, moment);
    Confirm: |engine, _, by, moment| engine.confirm(by, moment);
    Rollback: |engine, _, by, _| engine.roll_back(by);
    ReloadRequest: |engine, request, by, moment| engine.reload_by(request, by, moment);
    AcceptList: |engine, request, by, moment| engine.accept_list(&request, by, moment);
    Detach: |engine, call, by, moment| engine.detach(call.interface.as_deref(), by, moment);
}

impl<D: Datapath> Engine<D> {
    /// Returns the engine after checking whether a trial has ended.
    pub(super) fn up_to_date(&mut self) -> &mut Self {
        self.notice_trial();
        self
    }
}
