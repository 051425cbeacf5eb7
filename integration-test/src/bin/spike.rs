//! spike
use ratelimit_common::layout::Unit;
use ratelimit_common::source::Family;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_userspace::config::XdpModeChoice;
use ratelimit_userspace::datapath::Datapath;
use ratelimit_userspace::datapath::kernel::*;
use ratelimit_userspace::desired::*;
fn main() {
    let t = std::time::Instant::now();
    let clock = if std::env::args().nth(1).as_deref() == Some("k") { Clock::Kernel } else { Clock::Injected };
    let mut k = Kernel::load(&Options {
        pins: None,
        xdp_mode: XdpModeChoice::Auto,
        max_sources: 262144,
        windows_per_source: 1,
        ipv6_family: Family::V6,
        clock,
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    println!("loaded in {:?}", t.elapsed());
    let limit = Limit {
        amount: 10,
        unit: Unit::Packets,
        window_ns: 300 * SECOND_NS,
        buckets: 5,
        bucket_ns: 60 * SECOND_NS,
        form: WindowForm::Strict,
        slot: 7,
    };
    let policy = Policy {
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        exempt: vec![],
        rules: vec![Rule {
            name: "default".into(),
            mode: Mode::Enforce,
            refuse: Refuse::Excess,
            ports: Ports { tcp: vec![(80, 80)], udp: vec![], other_protocols: false },
            limits: vec![limit],
        }],
    };
    let t = std::time::Instant::now();
    k.apply(&policy).unwrap();
    println!("applied in {:?}", t.elapsed());
    if clock == Clock::Injected {
        k.set_now(Nanos(1_800_000_000 * SECOND_NS)).unwrap();
    }
    let mut f = vec![0u8; 60];
    f[12] = 8;
    f[14] = 0x45;
    f[17] = 46;
    f[23] = 6;
    f[26..30].copy_from_slice(&[198, 51, 100, 7]);
    f[36] = 0;
    f[37] = 80;
    f[47] = 2;
    for i in 0..12 {
        println!("{i} {:?}", k.test_run(&f, 1).unwrap());
    }
    for _ in 0..3 {
        println!("over {:?}", k.test_run(&f, 2_000_000).unwrap().duration);
    }
    let mut g = f.clone();
    g[37] = 81;
    for _ in 0..3 {
        println!("not protected {:?}", k.test_run(&g, 2_000_000).unwrap().duration);
    }
    g[12] = 9;
    for _ in 0..3 {
        println!("not ip {:?}", k.test_run(&g, 2_000_000).unwrap().duration);
    }
    println!("{:?}", k.source("198.51.100.7".parse().unwrap()).unwrap());
    let mut n = 0;
    k.visit_sources(&mut |s| {
        n += 1;
        println!("{s:?}")
    })
    .unwrap();
    println!("{n} {:?}", k.read().unwrap().unlisted);
}
