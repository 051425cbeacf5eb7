//! Shorthands of these tests for the control commands.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Client, ClientError};
use ratelimit_control::Call;
use ratelimit_control::proto::{
    Allow, ApplyRequest, ChargeRequest, Check, CheckPrefix, Confirm, Deny, Detach, Explain, GrantReport, GrantRequest,
    Healthz, ModeRequest, ModeWord, PrefixRequest, ReloadRequest, Rollback, SourceRequest, StandingOf, Stats, Suggest,
    UnblockReport, UnblockRequest,
};
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_report::snapshot::ListFilter;

type Answer<C> = Result<<C as Call>::Report, ClientError>;

pub(super) trait Asks {
    fn client(&self) -> &Client;

    async fn stats(&self) -> Answer<Stats> {
        self.client().call(&Stats::now()).await
    }

    async fn check(&self, ip: IpAddr) -> Answer<Check> {
        self.client().call(&Check { ip }).await
    }

    async fn check_prefix(&self, prefix: IpNet, most: u64) -> Answer<CheckPrefix> {
        self.client().call(&CheckPrefix { prefix: prefix.to_string(), most: Some(most) }).await
    }

    async fn health(&self) -> Answer<Healthz> {
        self.client().call(&Healthz {}).await
    }

    async fn reload(&self) -> Answer<ReloadRequest> {
        self.reload_by(&ReloadRequest::default()).await
    }

    async fn reload_by(&self, request: &ReloadRequest) -> Answer<ReloadRequest> {
        self.client().call(request).await
    }

    async fn detach(&self, interface: Option<&str>) -> Answer<Detach> {
        self.client().call(&Detach { interface: interface.map(str::to_owned) }).await
    }

    async fn list(&self) -> Answer<ListFilter> {
        self.list_of(&ListFilter::default()).await
    }

    async fn list_of(&self, filter: &ListFilter) -> Answer<ListFilter> {
        self.client().call(filter).await
    }

    async fn suggest(&self, rule: Option<&str>) -> Answer<Suggest> {
        self.client().call(&Suggest { rule: rule.map(str::to_owned) }).await
    }

    async fn explain(&self, sent: &Sent) -> Answer<Explain> {
        self.client().call(&Explain::new(sent)).await
    }

    async fn grant(&self, grant: Grant, request: &GrantRequest) -> Result<GrantReport, ClientError> {
        match grant {
            Grant::Exempt => self.client().call(&Allow(request.clone())).await,
            Grant::Denied => self.client().call(&Deny(request.clone())).await,
        }
    }

    async fn unblock(&self, prefix: &str) -> Result<UnblockReport, ClientError> {
        self.client().call(&UnblockRequest { prefix: Some(prefix.to_owned()), ..UnblockRequest::default() }).await
    }

    async fn unblock_all(&self) -> Result<UnblockReport, ClientError> {
        self.client().call(&UnblockRequest { all: true, ..UnblockRequest::default() }).await
    }

    async fn unallow(&self, prefix: &str) -> Answer<PrefixRequest> {
        self.client().call(&PrefixRequest { prefix: prefix.to_owned(), fleet: false }).await
    }

    async fn reset(&self, source: IpAddr) -> Answer<SourceRequest> {
        self.client().call(&SourceRequest { source, fleet: false }).await
    }

    async fn mode(&self, mode: ModeWord) -> Answer<ModeRequest> {
        self.client().call(&ModeRequest { mode }).await
    }

    async fn apply(&self, request: &ApplyRequest) -> Answer<ApplyRequest> {
        self.client().call(request).await
    }

    async fn confirm(&self) -> Answer<Confirm> {
        self.client().call(&Confirm {}).await
    }

    async fn roll_back(&self) -> Answer<Rollback> {
        self.client().call(&Rollback {}).await
    }

    async fn charge(&self, request: &ChargeRequest) -> Answer<ChargeRequest> {
        self.client().call(request).await
    }

    async fn standing(&self, ip: IpAddr, rule: &str) -> Answer<StandingOf> {
        self.client().call(&StandingOf { ip, rule: rule.to_owned() }).await
    }
}

impl Asks for Client {
    fn client(&self) -> &Client {
        self
    }
}
