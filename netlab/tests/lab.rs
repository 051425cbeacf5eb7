//! Tests of the laboratory, which must work and leave nothing behind.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use netlab::{
    Bpffs, Child, End, Forwarded, HttpServer, Namespace, PacketSocket, Relay, Trouble, UdpCounter, acquaint,
    needs_root, veth, without_offloads,
};

fn pair() -> (Namespace, Namespace) {
    let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    veth(
        End { namespace: &client, interface: "c0", addresses: &["10.9.0.2/24", "fd09::2/64"] },
        End { namespace: &server, interface: "s0", addresses: &["10.9.0.1/24", "fd09::1/64"] },
    )
    .unwrap();
    (client, server)
}

#[test]
fn a_client_reaches_a_server_over_both_families() {
    needs_root!();
    let (client, server) = pair();
    let over_v4 = HttpServer::start(&server, "10.9.0.1:80".parse().unwrap()).unwrap();
    let over_v6 = HttpServer::start(&server, "[fd09::1]:80".parse().unwrap()).unwrap();
    for (url, http) in [("http://10.9.0.1/", &over_v4), ("http://[fd09::1]/", &over_v6)] {
        let output = client.run(&["curl", "-sS", "-m", "5", url]).unwrap();
        assert_eq!(output.stdout, "ok\n", "{}", output.stderr);
        assert_eq!(http.connections().values().sum::<u64>(), 1);
    }
}

#[test]
fn datagrams_are_counted_by_client() {
    needs_root!();
    let (client, server) = pair();
    let counter = UdpCounter::start(&server, "10.9.0.1:443".parse().unwrap()).unwrap();
    let socket = client.inside(|| Ok(UdpSocket::bind("10.9.0.2:0")?)).unwrap();
    for _ in 0..10 {
        socket.send_to(b"x", "10.9.0.1:443".parse::<SocketAddr>().unwrap()).unwrap();
    }
    let from: IpAddr = "10.9.0.2".parse().unwrap();
    for _ in 0..200 {
        if counter.datagrams().get(&from) == Some(&10) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?}", counter.datagrams());
}

#[test]
fn a_raw_frame_arrives_as_it_was_sent() {
    needs_root!();
    let (client, server) = pair();
    let listener = PacketSocket::listener(&server, "s0").unwrap();
    let frame = [&[0xff; 12][..], &[0x88, 0xb5], &[7; 50]].concat();
    PacketSocket::sender(&client, "c0").unwrap().send(&frame).unwrap();
    for _ in 0..200 {
        if let Some(heard) = listener.receive().unwrap() {
            if heard == frame {
                return;
            }
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("nothing heard");
}

#[test]
fn a_child_finds_the_bpf_file_system_and_dies_with_its_holder() {
    needs_root!();
    let namespace = Namespace::new().unwrap();
    let bpffs = Bpffs::mount().unwrap();
    fs::create_dir(bpffs.path().join("made")).unwrap();
    let mut command = namespace.command_with(&bpffs, "sh");
    command.args(["-c", "stat -f -c %T /sys/fs/bpf >&2; ls /sys/fs/bpf >&2; echo ready >&2; sleep 100"]);
    let child = Child::start(command).unwrap();
    child.wait_for_line("ready", Duration::from_secs(5)).unwrap();
    assert!(child.stderr().contains("bpf_fs\nmade\n"), "{}", child.stderr());
    let proc = format!("/proc/{}", child.id());
    assert!(fs::exists(&proc).unwrap());
    drop(child);
    assert!(!fs::exists(&proc).unwrap());
}

#[test]
fn nothing_remains_of_what_is_dropped() {
    needs_root!();
    let (client, server) = pair();
    let bpffs = Bpffs::mount().unwrap();
    let (names, path) = ([client.name().to_owned(), server.name().to_owned()], bpffs.path().to_owned());
    drop((client, server, bpffs));
    let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(!names.iter().any(|name| list.contains(name)), "{list}");
    assert!(!path.exists());
}

#[test]
fn remains_of_a_killed_run_are_swept() {
    needs_root!();
    // The highest process id that Linux gives is 4194303.
    let name = format!("rl-4194304-{}", std::process::id());
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
    let swept = netlab::sweep().unwrap();
    assert!(swept.contains(&format!("namespace {name}")), "{swept:?}");
}

#[test]
fn a_relay_carries_what_it_does_not_lose() {
    needs_root!();
    let (client, wire, server) = (Namespace::new().unwrap(), Namespace::new().unwrap(), Namespace::new().unwrap());
    let near = End { namespace: &client, interface: "c0", addresses: &["10.9.0.2/24"] };
    let far = End { namespace: &server, interface: "s0", addresses: &["10.9.0.1/24"] };
    for (end, interface) in [(near, "w0"), (far, "w1")] {
        veth(end, End { namespace: &wire, interface, addresses: &[] }).unwrap();
        without_offloads(&wire, interface).unwrap();
        without_offloads(end.namespace, end.interface).unwrap();
    }
    acquaint(near, far).unwrap();
    let trouble = Trouble { lost: 100, held: 200, hold: Duration::from_millis(2), seed: 1 };
    let relay = Relay::start(&wire, ["w0", "w1"], trouble).unwrap();
    let counter = UdpCounter::start(&server, "10.9.0.1:443".parse().unwrap()).unwrap();
    let socket = client.inside(|| Ok(UdpSocket::bind("10.9.0.2:0")?)).unwrap();
    let from: IpAddr = "10.9.0.2".parse().unwrap();
    let arrived = || counter.datagrams().get(&from).copied().unwrap_or(0);
    for sent in (100..=1000).step_by(100) {
        for _ in 0..100 {
            socket.send_to(b"x", "10.9.0.1:443".parse::<SocketAddr>().unwrap()).unwrap();
        }
        // Limits the outstanding datagrams to what a socket can buffer.
        let deadline = Instant::now() + Duration::from_secs(5);
        while relay.forwarded().carried + relay.forwarded().lost < sent || arrived() < relay.forwarded().carried {
            assert!(Instant::now() < deadline, "{:?}, {} arrived", relay.forwarded(), arrived());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let Forwarded { carried, lost, held } = relay.forwarded();
    assert!((50..150).contains(&lost) && (100..300).contains(&held), "{lost} lost, {held} held");
    assert_eq!(arrived(), carried);
}
