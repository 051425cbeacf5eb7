#!/usr/bin/env bash
# Two limiters that hold one limit together over a cluster of 3 + 3 Redis nodes, and a client that asks both by turns.
# All of it lives in network namespaces of its own, and is removed at the end. See README.md.
set -euo pipefail

ratelimitd=${RATELIMITD_BIN:-ratelimitd}
redis=${REDIS_SERVER:-redis-server}
redis_cli=$(dirname "$(command -v "$redis")")/redis-cli
dir=$(mktemp -d)
name=rl-fleet-$$
store=$name-0 client=$name-1 hosts=("$name-2" "$name-3")
pids=()

cleanup() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait
    for namespace in "$store" "$client" "${hosts[@]}"; do
        ip netns del "$namespace" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap cleanup EXIT

within() { # NAMESPACE COMMAND...: not `ip netns exec`, which would hide /sys
    nsenter --net="/run/netns/$1" -- "${@:2}"
}

start() { # NAMESPACE LOG COMMAND...
    nsenter --net="/run/netns/$1" -- "${@:3}" >"$dir/$2" 2>&1 &
    pids+=($!)
}

redis() { # PROGRAM ARGUMENT...: an unpacked one needs its own libraries
    within "$store" env LD_LIBRARY_PATH="${REDIS_LIBRARIES:-}" "$@"
}

until_it_works() { # LOG COMMAND...
    for _ in $(seq 300); do
        if "${@:2}" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "it does not work: ${*:2}" >&2
    cat "$dir/$1" >&2
    exit 1
}

# The network: a bridge for hosts and store, and one wire from the client to each host.
for namespace in "$store" "$client" "${hosts[@]}"; do
    ip netns add "$namespace"
    ip -n "$namespace" link set lo up
done
ip -n "$store" link add br0 type bridge
ip -n "$store" addr add 10.8.0.254/24 dev br0
ip -n "$store" link set br0 up
ip -n "$client" addr add 198.51.100.7/32 dev lo
for number in 0 1; do
    host=${hosts[$number]}
    ip link add f0 netns "$host" type veth peer name "b$number" netns "$store"
    ip -n "$store" link set "b$number" master br0 up
    ip -n "$host" addr add "10.8.0.$((number + 1))/24" dev f0
    ip -n "$host" link set f0 up
    ip link add s0 netns "$host" type veth peer name "c$number" netns "$client"
    ip -n "$host" addr add "10.9.$number.1/24" dev s0
    ip -n "$host" link set s0 up
    ip -n "$client" addr add "10.9.$number.254/24" dev "c$number"
    ip -n "$client" link set "c$number" up
    ip -n "$host" route add 198.51.100.0/24 via "10.9.$number.254"
done

# The store: three masters, each with a replica. Nothing of it is written to disk.
nodes=() urls=()
for number in 0 1 2 3 4 5; do
    port=$((6379 + number))
    mkdir "$dir/$number"
    start "$store" "redis-$number" env LD_LIBRARY_PATH="${REDIS_LIBRARIES:-}" "$redis" \
        --bind 10.8.0.254 --port "$port" --protected-mode no --save "" --appendonly no --dir "$dir/$number" \
        --cluster-enabled yes --cluster-node-timeout 1000 --cluster-require-full-coverage no
    until_it_works "redis-$number" redis "$redis_cli" -h 10.8.0.254 -p "$port" ping
    nodes+=("10.8.0.254:$port")
    urls+=("\"redis://10.8.0.254:$port\"")
done
redis "$redis_cli" --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes >"$dir/create"
is_whole() { redis "$redis_cli" -h 10.8.0.254 cluster info | grep -q cluster_state:ok; }
until_it_works create is_whole

# The hosts: a web server, and a limiter before it.
(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/fleet.secret")
for number in 0 1; do
    host=${hosts[$number]}
    cat >"$dir/host-$number.toml" <<END
interfaces = ["s0"]
on_exit = "detach"
socket = "$dir/host-$number.sock"

[fleet]
url = [$(IFS=, && echo "${urls[*]}")]
secret_file = "$dir/fleet.secret"
hosts = 2

[rule]
limits = ["20/1m requests"]
END
    mkdir "$dir/www-$number"
    start "$host" "web-$number" python3 -m http.server 80 --directory "$dir/www-$number"
    start "$host" "limiter-$number" env RATELIMITD_STATE_DIR="$dir/state-$number" \
        "$ratelimitd" run --config "$dir/host-$number.toml"
done
ask() { # HOST COMMAND...
    within "${hosts[$1]}" env RATELIMITD_SOCKET="$dir/host-$1.sock" RATELIMITD_STATE_DIR="$dir/state-$1" \
        "$ratelimitd" "${@:2}"
}
hears_both() { ask "$1" fleet --json | grep -Eq '"hosts": *2'; }
for number in 0 1; do
    until_it_works "web-$number" within "$client" curl -s --max-time 1 "http://10.9.$number.1/"
    until_it_works "limiter-$number" hears_both "$number"
done
within "${hosts[0]}" "$ratelimitd" check-config "$dir/host-0.toml" | grep -i "at most" || true

# The client: 30 requests, 15 to each host.
answered=0
for request in $(seq 30); do
    if within "$client" curl -s -o /dev/null --max-time 0.3 --interface 198.51.100.7 \
        "http://10.9.$((request % 2)).1/"; then
        answered=$((answered + 1))
    fi
done
echo "30 requests of one client over two hosts, of which each allows it 20 in a minute: $answered are answered."
for number in 0 1; do
    echo
    echo "host $number:"
    ask "$number" check 198.51.100.7 || true
done
echo
ask 0 fleet
