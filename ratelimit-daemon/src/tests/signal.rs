//! Test of a whole run that a real signal ends.

use super::*;

/// Runs on a thread of its own, because capabilities are given up per thread.
#[test]
fn a_real_signal_ends_a_real_run() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let config = config(directory.path(), 3);
            let client = Client::new(&config.socket);
            let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
            let Host { look, attention, give_back_memory, .. } = surroundings(None).0.host;
            let host = HostFunctions { look, attention, give_up_privileges: || {}, give_back_memory };
            let daemon = run(config, ConfigSource::Flags, |_| Ok(datapath), |_| {}, host);
            let user = async {
                while client.health().await.is_err() {
                    tokio::task::yield_now().await;
                }
                nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGTERM).unwrap();
            };
            let (ended, ()) = tokio::join!(daemon, user);
            ended.unwrap();
            assert_eq!(kernel.calls().last().map(String::as_str), Some("shutdown detach"));
        });
    })
    .join()
    .unwrap();
}
