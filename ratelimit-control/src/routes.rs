//! The routes that the socket has beyond reading statistics: what commands change, and what names a source.

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::proto::{
    ALLOW, APPLY, CHARGE, CHECK_PREFIX, CONFIRM, ChargeRequest, DENY, EXPLAIN, GrantRequest, LIST, MODE, ModeRequest,
    PrefixRequest, ProblemKind, RELOAD, RESET, ROLLBACK, ReloadRequest, STANDING, SUGGEST, SourceRequest, UNALLOW,
    UNBLOCK, UnblockRequest,
};
use super::requester::Requester;
use super::server::{Refusal, Service, parse_address, problem};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_report::snapshot::ListFilter;

type Answer = Result<Response, Refusal>;

/// Adds them.
pub(super) fn add_to(router: Router<Service>) -> Router<Service> {
    router
        .route(LIST, get(list))
        .route(CHECK_PREFIX, get(check_prefix))
        .route(SUGGEST, get(suggest))
        .route(&format!("{EXPLAIN}/{{ip}}"), get(explain))
        .route(&format!("{STANDING}/{{ip}}"), get(standing))
        .route(ALLOW, post(allow))
        .route(DENY, post(deny))
        .route(UNBLOCK, post(unblock))
        .route(UNALLOW, post(unallow))
        .route(RESET, post(reset))
        .route(MODE, post(mode))
        .route(APPLY, post(apply))
        .route(RELOAD, post(reload))
        .route(CONFIRM, post(confirm))
        .route(ROLLBACK, post(rollback))
        .route(CHARGE, post(charge))
}

async fn list(State(service): State<Service>, Query(filter): Query<ListFilter>) -> Answer {
    Ok(Json(service.handle.list(filter).await?).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixQuery {
    prefix: String,
    most: Option<u64>,
}

async fn check_prefix(State(service): State<Service>, Query(query): Query<PrefixQuery>) -> Answer {
    // What is asked about is not changed by it, so that an address means itself.
    let prefix = match target(&query.prefix)? {
        Target::Address(address) => address.to_canonical().into(),
        Target::Prefix { network, .. } => network,
    };
    Ok(Json(service.handle.check_prefix(prefix, query.most).await?).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuggestQuery {
    rule: Option<String>,
}

async fn suggest(State(service): State<Service>, Query(query): Query<SuggestQuery>) -> Answer {
    Ok(Json(service.handle.suggest(query.rule).await?).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    to: String,
    address: Option<String>,
}

async fn explain(
    State(service): State<Service>,
    Path(source): Path<String>,
    Query(query): Query<ExplainQuery>,
) -> Answer {
    let to = query.address.as_deref().map(parse_address).transpose()?;
    let sent = Sent::to_port(parse_address(&source)?, to, &query.to).ok_or_else(|| {
        let why = format!("`{}` is no port: write a number, and /udp after it where it is not TCP", query.to);
        problem(ProblemKind::BadRequest, &why)
    })?;
    Ok(Json(service.handle.explain(sent).await?).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StandingQuery {
    rule: String,
}

async fn standing(
    State(service): State<Service>,
    Path(source): Path<String>,
    Query(query): Query<StandingQuery>,
) -> Answer {
    let source = parse_address(&source)?;
    Ok(Json(service.handle.standing(source, query.rule).await?).into_response())
}

async fn allow(service: State<Service>, by: Requester, body: Bytes) -> Answer {
    grant(service, by, &body, Grant::Exempt).await
}

async fn deny(service: State<Service>, by: Requester, body: Bytes) -> Answer {
    grant(service, by, &body, Grant::Denied).await
}

async fn grant(State(service): State<Service>, by: Requester, body: &Bytes, grant: Grant) -> Answer {
    let request: GrantRequest = parse(body)?;
    let target = target(&request.prefix)?;
    Ok(Json(service.handle.grant(grant, target, request, by).await?).into_response())
}

async fn unblock(State(service): State<Service>, by: Requester, body: Bytes) -> Answer {
    let target = match parse(&body)? {
        UnblockRequest { prefix: Some(prefix), all: false } => Some(target(&prefix)?),
        UnblockRequest { prefix: None, all: true } => None,
        UnblockRequest { .. } => {
            return Err(problem(ProblemKind::BadRequest, "name a prefix, or `all`: one of the two"));
        }
    };
    Ok(Json(service.handle.unblock(target, by).await?).into_response())
}

async fn unallow(State(service): State<Service>, by: Requester, body: Bytes) -> Answer {
    let request: PrefixRequest = parse(&body)?;
    Ok(Json(service.handle.unallow(target(&request.prefix)?, by).await?).into_response())
}

async fn reset(State(service): State<Service>, by: Requester, body: Bytes) -> Answer {
    let request: SourceRequest = parse(&body)?;
    Ok(Json(service.handle.reset(request.source, by).await?).into_response())
}

async fn mode(State(service): State<Service>, by: Requester, body: Bytes) -> Answer {
    let request: ModeRequest = parse(&body)?;
    Ok(Json(service.handle.mode(request.mode, by).await?).into_response())
}

async fn apply(State(service): State<Service>, by: Requester, body: Bytes) -> Answer {
    Ok(Json(service.handle.apply(parse(&body)?, by).await?).into_response())
}

async fn reload(State(service): State<Service>, _by: Requester, body: Bytes) -> Answer {
    let request = if body.is_empty() { ReloadRequest::default() } else { parse(&body)? };
    Ok(Json(service.handle.reload(request).await?).into_response())
}

async fn confirm(State(service): State<Service>, by: Requester) -> Answer {
    Ok(Json(service.handle.confirm(by).await?).into_response())
}

async fn rollback(State(service): State<Service>, by: Requester) -> Answer {
    Ok(Json(service.handle.roll_back(by).await?).into_response())
}

/// For all who may connect: an application adds to what its clients have used, and can allow none.
async fn charge(State(service): State<Service>, body: Bytes) -> Answer {
    let request: ChargeRequest = parse(&body)?;
    Ok(Json(service.handle.charge(request).await?).into_response())
}

/// Whatever the content type is said to be.
fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| problem(ProblemKind::BadRequest, &format!("the body is not what is asked for here: {error}")))
}

fn target(text: &str) -> Result<Target, Refusal> {
    Target::parse(text).map_err(|error| {
        let help = error.help.map_or(String::new(), |help| format!("; {help}"));
        problem(ProblemKind::BadRequest, &format!("{}{help}", error.problem))
    })
}
