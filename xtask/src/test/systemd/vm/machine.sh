#!/bin/bash
# In the machine of the tier systemd-vm: the network, a client that asks from the boot on, and the two boots.
# What the tier reads are lines `machine: NAME VALUE` on the console.
set -u
state=/var/lib/machine
limit=20

say() { echo "machine: $*" >/dev/ttyS0; }
uptime_now() { cut -d' ' -f1 /proc/uptime; }
seconds() { awk -v usec="$(systemctl show --property="$2" --value "$1")" 'BEGIN { printf "%.3f\n", usec / 1000000 }'; }

# The clients' namespace, before anything that needs the network.
lab() {
    modprobe veth
    ip netns add clients
    ip link add web0 type veth peer name c0 netns clients
    ip link set web0 up
    ip -netns clients link set c0 up
    ip address add 198.51.100.1/24 dev web0
    ip -netns clients address add 198.51.100.101/24 dev c0
}

# Asks from before the servers start, four times a second, until it was answered and then refused. What is admitted is
# waited for: the machine is slow, and an answer that nobody waits for is one of the limit all the same.
client() {
    rm -f $state/asked
    refused=0
    answered=0
    for _ in $(seq 1200); do
        patience=30
        [ $answered -lt $limit ] || patience=3
        code=$(ip netns exec clients curl -s -o /dev/null -w '%{http_code}' --max-time $patience http://198.51.100.1/)
        echo "$(uptime_now) $code" >>$state/asked
        if [ "$code" = 200 ]; then
            answered=$((answered + 1))
            refused=0
        elif [ $answered -gt 0 ]; then
            refused=$((refused + 1))
            [ $refused -lt 3 ] || break
        fi
        [ "$code" = 200 ] || sleep 0.25
    done
    touch $state/asked-all
}

until_running() {
    for _ in $(seq 600); do
        case $(systemctl is-system-running) in running | degraded) break ;; esac
        sleep 0.5
    done
    say "running $(systemctl is-system-running)"
    say "running_at $(uptime_now)"
}

first_boot() {
    until_running
    apt-get install -qq -o Dpkg::Use-Pty=0 /opt/ratelimitd.deb && say "installed yes"
    sed -i -e 's|^interfaces = .*|interfaces = ["web0"]|' -e "s|^limits = .*|limits = [\"$limit/10m\"]|" \
        -e 's|^mode = .*|mode = "enforce"|' /etc/ratelimitd/ratelimitd.toml
    # An emulated machine beside others may have no time for its daemon for longer than a real one ever.
    mkdir -p /etc/systemd/system/ratelimitd.service.d
    printf '[Service]\nWatchdogSec=300\nTimeoutStartSec=600\n' >/etc/systemd/system/ratelimitd.service.d/slow.conf
    systemctl daemon-reload
    before=$(uptime_now)
    systemctl enable --now ratelimitd && say "started_seconds $(awk -v a="$before" -v b="$(uptime_now)" 'BEGIN { print b - a }')"
    touch $state/second
    sync
    say "reboot_at $(uptime_now)"
    systemctl reboot
}

second_boot() {
    until_running
    for _ in $(seq 240); do
        [ -e $state/asked-all ] && break
        sleep 0.5
    done
    say "unit $(systemctl is-enabled ratelimitd) $(systemctl is-active ratelimitd) restarts $(systemctl show --property=NRestarts --value ratelimitd)"
    say "begun_at $(seconds ratelimitd ExecMainStartTimestampMonotonic)"
    say "ready_at $(seconds ratelimitd ActiveEnterTimestampMonotonic)"
    say "nginx_begun_at $(seconds nginx ExecMainStartTimestampMonotonic)"
    say "nginx_ready_at $(seconds nginx ActiveEnterTimestampMonotonic)"
    say "attached_at $(journalctl --boot --unit=ratelimitd.service --output=short-monotonic --no-pager |
        sed -n 's/^\[ *\([0-9.]*\)\].*attached to web0.*/\1/p' | head -n 1)"
    say "first_answer_at $(awk '$2 == 200 { print $1; exit }' $state/asked)"
    say "asked_before $(awk '$2 == 200 { exit } { n++ } END { print n + 0 }' $state/asked)"
    say "answered $(grep -c ' 200$' $state/asked)"
    say "refused_after $(tac $state/asked | awk '$2 == 200 { exit } { n++ } END { print n + 0 }')"
    ratelimitd stats >/tmp/stats 2>&1
    while IFS= read -r line; do say "stats $line"; done </tmp/stats
    say "end yes"
    systemctl poweroff
}

mkdir -p $state
case $1 in
lab) lab ;;
client) client ;;
test) if [ -e $state/second ]; then second_boot; else first_boot; fi ;;
esac
