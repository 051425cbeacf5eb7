//! What the engine does for each command of the control API: from the command's arguments to what carries it out.
//!
//! Whatever shows or charges by rules notices first whether a trial is over, so that it is about what packets are
//! judged by.

use std::sync::Arc;

use super::engine::Engine;
use super::moment::Moment;
use ratelimit_control::proto::{
    Allow, ApplyReport, ApplyRequest, ChargeRequest, Check, CheckPrefix, Confirm, ConfirmReport, Deny, Detach,
    DetachReport, Explain, GrantReport, Health, Healthz, ModeReport, ModeRequest, PrefixRequest, Problem, ReloadReport,
    ReloadRequest, ResetReport, Rollback, RollbackReport, SourceRequest, Standing, StandingOf, Stats, Suggest,
    UnblockReport, UnblockRequest,
};
use ratelimit_control::{Carry, Requester};
use ratelimit_datapath::Datapath;
use ratelimit_policy::desired::Grant;
use ratelimit_report::snapshot::{
    CheckReport, ExplainReport, ListFilter, ListReport, PrefixReport, Snapshot, SuggestReport,
};

impl<D: Datapath> Carry<Stats, Moment> for Engine<D> {
    fn carry(&mut self, call: Stats, _: &Requester, moment: Moment) -> Result<Snapshot, Problem> {
        self.notice_trial();
        self.stats(call.since, moment).map(Arc::unwrap_or_clone)
    }
}

impl<D: Datapath> Carry<Check, Moment> for Engine<D> {
    fn carry(&mut self, call: Check, _: &Requester, moment: Moment) -> Result<CheckReport, Problem> {
        self.notice_trial();
        self.check(call.ip, moment)
    }
}

impl<D: Datapath> Carry<CheckPrefix, Moment> for Engine<D> {
    fn carry(&mut self, call: CheckPrefix, _: &Requester, moment: Moment) -> Result<PrefixReport, Problem> {
        self.notice_trial();
        self.check_prefix(call.prefix()?, call.most, moment)
    }
}

impl<D: Datapath> Carry<Healthz, Moment> for Engine<D> {
    fn carry(&mut self, _: Healthz, _: &Requester, moment: Moment) -> Result<Health, Problem> {
        Ok(self.supervise(moment).health())
    }
}

impl<D: Datapath> Carry<ListFilter, Moment> for Engine<D> {
    fn carry(&mut self, call: ListFilter, _: &Requester, moment: Moment) -> Result<ListReport, Problem> {
        self.notice_trial();
        self.list(&call, moment)
    }
}

impl<D: Datapath> Carry<Suggest, Moment> for Engine<D> {
    fn carry(&mut self, call: Suggest, _: &Requester, moment: Moment) -> Result<SuggestReport, Problem> {
        self.suggest(call.rule.as_deref(), moment)
    }
}

impl<D: Datapath> Carry<Explain, Moment> for Engine<D> {
    fn carry(&mut self, call: Explain, _: &Requester, _: Moment) -> Result<ExplainReport, Problem> {
        self.notice_trial();
        self.explain(&call.sent()?)
    }
}

impl<D: Datapath> Carry<StandingOf, Moment> for Engine<D> {
    fn carry(&mut self, call: StandingOf, _: &Requester, _: Moment) -> Result<Standing, Problem> {
        self.notice_trial();
        self.standing(call.ip, &call.rule)
    }
}

impl<D: Datapath> Carry<ChargeRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: ChargeRequest, _: &Requester, _: Moment) -> Result<Standing, Problem> {
        self.notice_trial();
        self.charge(&call)
    }
}

impl<D: Datapath> Carry<Allow, Moment> for Engine<D> {
    fn carry(&mut self, Allow(request): Allow, by: &Requester, moment: Moment) -> Result<GrantReport, Problem> {
        self.grant(Grant::Exempt, request.target()?, &request, by, moment)
    }
}

impl<D: Datapath> Carry<Deny, Moment> for Engine<D> {
    fn carry(&mut self, Deny(request): Deny, by: &Requester, moment: Moment) -> Result<GrantReport, Problem> {
        self.grant(Grant::Denied, request.target()?, &request, by, moment)
    }
}

impl<D: Datapath> Carry<UnblockRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: UnblockRequest, by: &Requester, moment: Moment) -> Result<UnblockReport, Problem> {
        self.unblock(call.target()?, by, moment)
    }
}

impl<D: Datapath> Carry<PrefixRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: PrefixRequest, by: &Requester, moment: Moment) -> Result<UnblockReport, Problem> {
        self.unallow(call.target()?, by, moment)
    }
}

impl<D: Datapath> Carry<SourceRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: SourceRequest, by: &Requester, moment: Moment) -> Result<ResetReport, Problem> {
        self.reset(call.source, by, moment)
    }
}

impl<D: Datapath> Carry<ModeRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: ModeRequest, by: &Requester, moment: Moment) -> Result<ModeReport, Problem> {
        self.set_mode(call.mode, by, moment)
    }
}

impl<D: Datapath> Carry<ApplyRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: ApplyRequest, by: &Requester, moment: Moment) -> Result<ApplyReport, Problem> {
        self.apply(&call, by, moment)
    }
}

impl<D: Datapath> Carry<Confirm, Moment> for Engine<D> {
    fn carry(&mut self, _: Confirm, by: &Requester, moment: Moment) -> Result<ConfirmReport, Problem> {
        self.confirm(by, moment)
    }
}

impl<D: Datapath> Carry<Rollback, Moment> for Engine<D> {
    fn carry(&mut self, _: Rollback, by: &Requester, _: Moment) -> Result<RollbackReport, Problem> {
        self.roll_back(by)
    }
}

impl<D: Datapath> Carry<ReloadRequest, Moment> for Engine<D> {
    fn carry(&mut self, call: ReloadRequest, _: &Requester, moment: Moment) -> Result<ReloadReport, Problem> {
        self.reload(call, moment)
    }
}

impl<D: Datapath> Carry<Detach, Moment> for Engine<D> {
    fn carry(&mut self, call: Detach, _: &Requester, moment: Moment) -> Result<DetachReport, Problem> {
        self.detach(call.interface.as_deref(), moment)
    }
}
