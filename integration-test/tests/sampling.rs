//! Tests of the sampling of unknown sources under overload: no sender can predict which packets are sampled in.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::program::{Program, Room, limit, on_one_cpu, policy};
use netlab::needs_root;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use ratelimit_common::layout::Unit;
use ratelimit_policy::desired::WindowForm;

/// Sampling shift of the overload, at which one in 16 is sampled in.
const SHIFT: u32 = 4;
/// Number of packets in a sequence, enough that two sequences are equal once in 2^180.
const PACKETS: u32 = 400;

fn program() -> Program {
    let room = Room { max_sources: 32_768, insertions_max: 2000, ..Room::default() };
    Program::with_room(&policy(&[limit(1000, Unit::Connections, WindowForm::Strict)]), room)
}

/// Returns a SYN from the source with this number.
fn syn(number: u32) -> Vec<u8> {
    frame(IPV4, V4 { source: (0x0800_0000 + number).to_be_bytes(), ..V4::of(TCP) }.around(tcp(80, SYN)))
}

/// Returns which of the next packets are sampled in on this CPU, each from another new source.
fn sampled_in(program: &mut Program, next: &mut u32) -> Vec<bool> {
    while program.shift() < SHIFT {
        for _ in 0..100 {
            *next += 1;
            program.passes(&syn(*next));
        }
    }
    let mut sampled = Vec::new();
    for _ in 0..PACKETS {
        let before = program.insertions();
        *next += 1;
        program.passes(&syn(*next));
        sampled.push(program.insertions() != before);
    }
    let hits = sampled.iter().filter(|sampled| **sampled).count();
    assert!((5..60).contains(&hits), "{hits} of {PACKETS}, and one in {} was expected", 1 << SHIFT);
    sampled
}

#[test]
fn two_loads_sample_others_of_the_same_packets() {
    needs_root!();
    on_one_cpu();
    let [one, other] = [1, 2].map(|_| sampled_in(&mut program(), &mut 0));
    assert_ne!(one, other);
}

#[test]
fn two_cpus_of_one_load_sample_others_of_as_many_packets() {
    needs_root!();
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap()).take(2).collect();
    let [one, other] = cpus[..] else {
        println!("skipped: two_cpus_of_one_load_sample_others_of_as_many_packets: needs two CPUs");
        return;
    };
    let (mut program, mut next) = (program(), 0);
    let [one, other] = [one, other].map(|cpu| {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        // The other CPU's overload does not count here. This CPU reaches the same overload by as many samples.
        for _ in 0..40_000 {
            next += 1;
            program.passes(&syn(next));
        }
        sampled_in(&mut program, &mut next)
    });
    assert_ne!(one, other);
}

#[test]
fn each_possible_cpu_starts_its_samples_elsewhere_in_each_load() {
    needs_root!();
    let loads = [program(), program()];
    let mut begun = Vec::new();
    for mut program in loads {
        let cpus = program.kernel().admissions().unwrap();
        assert_eq!(cpus.len(), possible_cpus());
        begun.extend(cpus.iter().map(|cpu| cpu.random));
    }
    // Two of 256 would be equal by chance once in 2^49 runs.
    let all = begun.len();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), all, "{begun:x?}");
    assert!(!begun.contains(&0));
}

/// Returns the number of CPUs that are present or may be plugged in. The kernel lists a few ranges, such as `0-1`.
fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let ends = |range: &str| -> (usize, usize) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (first.parse().unwrap(), last.parse().unwrap())
    };
    text.trim().split(',').map(ends).map(|(first, last)| last - first + 1).sum()
}
