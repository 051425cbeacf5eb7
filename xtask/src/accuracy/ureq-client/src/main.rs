//! `ureq-client URL N`: sends N requests over kept connections, every fourth with a body. Verifies no certificate.

use std::process::ExitCode;

use ureq::Agent;
use ureq::tls::TlsConfig;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(Ok(count))) = (arguments.next(), arguments.next().map(|count| count.parse::<u32>())) else {
        eprintln!("usage: ureq-client URL N");
        return ExitCode::FAILURE;
    };
    match ask(&url, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn ask(url: &str, count: u32) -> Result<(), ureq::Error> {
    let tls = TlsConfig::builder().disable_verification(true).build();
    let agent: Agent = Agent::config_builder().tls_config(tls).proxy(None).build().into();
    for number in 0..count {
        let answer = if number % 4 == 3 {
            agent.post(format!("{url}/sink")).send("x".repeat(500))?
        } else {
            agent.get(format!("{url}/ok")).call()?
        };
        // A connection is kept only if the answer was read to its end.
        answer.into_body().read_to_vec()?;
    }
    Ok(())
}
