//! The web page beside the API: decides who is logged in over TCP, and what a logged-in user may do.

use std::net::{IpAddr, Ipv6Addr};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use tower::ServiceExt as _;

use super::call::Call as _;
use super::places::Caller;
use super::proto::{
    Allow, Check, CheckPrefix, Deny, EventsOf, Explain, FleetStatus, Healthz, HistoryOf, PrefixRequest, Series,
    StandingOf, Stats, Suggest, UnblockRequest, Worst,
};
use super::server::{Peer, Service, method, told};
use ratelimit_report::snapshot::ListFilter;
use ratelimit_web::{Answer, Login, over_socket, with_headers};

/// Marker of a request of a user who is logged in over TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member;

/// Returns the routes of members: they read everything, and allow, deny and unblock. Only users on the host change the
/// configuration.
pub(super) fn member_routes() -> Router<Service> {
    Router::new()
        .route(Healthz::ROUTE.path, method::<Healthz>())
        .route(Stats::ROUTE.path, method::<Stats>())
        .route(Check::ROUTE.path, method::<Check>())
        .route(CheckPrefix::ROUTE.path, method::<CheckPrefix>())
        .route(ListFilter::ROUTE.path, method::<ListFilter>())
        .route(Suggest::ROUTE.path, method::<Suggest>())
        .route(Explain::ROUTE.path, method::<Explain>())
        .route(FleetStatus::ROUTE.path, method::<FleetStatus>())
        .route(StandingOf::ROUTE.path, method::<StandingOf>())
        .route(EventsOf::PATH, told())
        .route(HistoryOf::ROUTE.path, method::<HistoryOf>())
        .route(Worst::ROUTE.path, method::<Worst>())
        .route(Series::ROUTE.path, method::<Series>())
        .route(Allow::ROUTE.path, method::<Allow>())
        .route(Deny::ROUTE.path, method::<Deny>())
        .route(UnblockRequest::ROUTE.path, method::<UnblockRequest>())
        .route(PrefixRequest::ROUTE.path, method::<PrefixRequest>())
}

/// Adds the page to the API over the socket.
pub(super) fn with_page(api: Router) -> Router {
    Router::new().fallback(move |request: Request| {
        let api = api.clone();
        async move {
            with_headers(match over_socket(request) {
                Answer::Done(response) => response,
                Answer::Visitor(request) | Answer::Member(request) => answered(api, request).await,
            })
        }
    })
}

/// Combines the API over TCP for visitors with that for logged-in members.
pub(super) fn with_login(login: Login, visitors: Router, members: Router) -> Router {
    Router::new().fallback(move |request: Request| {
        let (login, visitors, members) = (login.clone(), visitors.clone(), members.clone());
        async move {
            let from = peer_address(&request);
            with_headers(match login.answer(request, from).await {
                Answer::Done(response) => response,
                Answer::Visitor(request) => answered(visitors, request).await,
                Answer::Member(mut request) => {
                    request.extensions_mut().insert(Member);
                    answered(members, request).await
                }
            })
        }
    })
}

async fn answered(router: Router, request: Request) -> Response {
    router.oneshot(request).await.into_response()
}

/// Returns the client's address; for IPv6, the first address of its /64.
fn peer_address(request: &Request) -> IpAddr {
    let address = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    match address.map(Caller::at) {
        Some(Caller::Address(address)) => address,
        Some(Caller::Privileged | Caller::User(_)) | None => Ipv6Addr::UNSPECIFIED.into(),
    }
}
