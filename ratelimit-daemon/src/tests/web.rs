//! Tests of users of the web page, and of the page's certificate.

use super::bans::Site;
use super::*;
use crate::certificate::tests::write;
use ratelimit_control::Requester;
use ratelimit_control::proto::GrantRequest;
use ratelimit_policy::desired::Grant;

fn site(adjust: impl FnOnce(&mut Config, &Path)) -> Site {
    Site::of("2026-03-01T12:00:00Z".parse().unwrap(), adjust)
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_despite_a_broken_policy_or_kernel_refusal() {
    let mut site = site(|config, directory| config.tls = Some(write(directory, "one.example")));
    let tls = site.engine.certificate.tls().unwrap();
    assert_eq!(tls.name().as_deref(), Some("one.example"));
    let mut next = site.engine.enforced.config.clone();
    next.policy.rules[0].limits[0].amount = 9;
    site.engine.enforced.source = file([Err(anyhow!("`limts` is no key")), Ok(next)]);
    for (name, broken) in [("two.example", "`limts` is no key"), ("three.example", "told to fail")] {
        write(site.directory.path(), name);
        site.kernel.refuse_apply();
        let moment = site.moment();
        let problem = site.engine.reload(ReloadRequest::default(), moment).unwrap_err();
        assert!(problem.message.contains(broken), "{problem:?}");
        assert_eq!(tls.name().as_deref(), Some(name), "it is what is served");
    }
}

#[tokio::test(start_paused = true)]
async fn a_web_user_denies_his_own_address_only_if_he_insists() {
    let mut site = site(|_, _| {});
    let moment = site.moment();
    let mut deny = |prefix: &str, force, by: &Requester| {
        let request = GrantRequest { prefix: prefix.to_owned(), force, ..GrantRequest::default() };
        let target = request.target().unwrap();
        site.engine.grant(Grant::Denied, target, &request, by, moment).map_err(|problem| problem.message)
    };
    let web = |address: &str| Requester::web(Some(address.parse().unwrap()));
    for (prefix, from, said) in [
        ("198.51.100.7", "198.51.100.7", "198.51.100.7 is the address that your browser comes from"),
        ("198.51.100.7", "::ffff:198.51.100.7", "198.51.100.7 is the address that your browser comes from"),
        ("198.51.100.0/24", "198.51.100.7", "198.51.100.0/24 contains the address that your browser comes from"),
        ("2001:db8::1", "2001:db8::7", "2001:db8::/64 contains the address that your browser comes from, 2001:db8::7"),
    ] {
        let why = deny(prefix, false, &web(from)).unwrap_err();
        assert!(why.starts_with(said) && why.ends_with("this may lock you out; --force denies it anyway"), "{why}");
        assert!(deny(prefix, false, &web("192.0.2.9")).is_ok(), "{prefix} is another's");
        assert!(deny(prefix, true, &web(from)).is_ok(), "{prefix}");
    }
    assert!(deny("192.0.2.8", false, &Requester::new(0, None)).is_ok());
}
