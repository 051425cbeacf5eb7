#!/bin/bash
# The script of the machine in the tier systemd-vm. It makes the network, runs a client from the start of each boot, and
# tests one boot after the other: the installation, a plain reboot, then one reboot for each fault.
# The tier reads lines `machine: NAME VALUE` on the console.
set -u
state=/var/lib/machine
limit=20
config=/etc/ratelimitd/ratelimitd.toml
list=/etc/ratelimitd/denied.txt
# The order of the boots. From the third on each is a fault: with `break_NAME`, which runs before the reboot, `mend_NAME`,
# which runs after the questions, and a row in faults.rs.
boots="install plain damaged_list missing_list missing_interface full_state unreachable_store wrong_clock"

say() { echo "machine: $*" >/dev/ttyS0; }
uptime_now() { cut -d' ' -f1 /proc/uptime; }
seconds() { awk -v usec="$(systemctl show --property="$2" --value "$1")" 'BEGIN { printf "%.3f\n", usec / 1000000 }'; }

# The boot that runs now: install, plain, or the name of a fault.
boot() { cat $state/boot 2>/dev/null || echo install; }

# The clients' namespace, before anything that needs the network. Faults that do not outlive a reboot are made here.
lab() {
    case $(boot) in
    full_state)
        mount -t tmpfs -o size=256k,mode=0750 tmpfs /var/lib/ratelimitd
        head -c 1M /dev/zero >/var/lib/ratelimitd/filler
        ;;
    wrong_clock)
        echo $(($(date +%s) - $(cut -d. -f1 /proc/uptime))) >$state/booted
        date --set='2001-01-01 00:00:00 UTC'
        ;;
    esac
    modprobe veth
    ip netns add clients
    ip link add web0 type veth peer name c0 netns clients
    ip link set web0 up
    ip -netns clients link set c0 up
    ip address add 198.51.100.1/24 dev web0
    ip -netns clients address add 198.51.100.101/24 dev c0
    ip -netns clients address add 198.51.100.102/24 dev c0
}

# Asks from before the servers start, four times a second, until it was answered and then refused. What is admitted is
# waited for: the machine is slow, and an answer that nobody waits for is one of the limit all the same.
client() {
    rm -f $state/asked $state/asked-all
    refused=0
    answered=0
    for _ in $(seq 1200); do
        patience=30
        [ $answered -lt $limit ] || patience=3
        code=$(ip netns exec clients curl -s -o /dev/null -w '%{http_code}' --max-time $patience --interface 198.51.100.101 http://198.51.100.1/)
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
    next_boot "$(boot_after install)"
}

# Reboots into the named boot.
next_boot() {
    echo "$1" >$state/boot
    sync
    say "reboot_at $(uptime_now)"
    systemctl reboot
}

until_asked() {
    for _ in $(seq 600); do
        [ -e $state/asked-all ] && break
        sleep 0.5
    done
}

unit_state() {
    echo "$(systemctl is-enabled ratelimitd) $(systemctl is-active ratelimitd) restarts $(systemctl show --property=NRestarts --value ratelimitd)"
}
answered() { grep -c ' 200$' $state/asked; }
refused_after() { tac $state/asked | awk '$2 == 200 { exit } { n++ } END { print n + 0 }'; }
say_stats() {
    ratelimitd stats >/tmp/stats 2>&1
    while IFS= read -r line; do say "$1 $line"; done </tmp/stats
}

plain_boot() {
    until_running
    until_asked
    say "unit $(unit_state)"
    say "begun_at $(seconds ratelimitd ExecMainStartTimestampMonotonic)"
    say "ready_at $(seconds ratelimitd ActiveEnterTimestampMonotonic)"
    say "nginx_begun_at $(seconds nginx ExecMainStartTimestampMonotonic)"
    say "nginx_ready_at $(seconds nginx ActiveEnterTimestampMonotonic)"
    say "attached_at $(journalctl --boot --unit=ratelimitd.service --output=short-monotonic --no-pager |
        sed -n 's/^\[ *\([0-9.]*\)\].*attached to web0.*/\1/p' | head -n 1)"
    say "first_answer_at $(awk '$2 == 200 { print $1; exit }' $state/asked)"
    say "asked_before $(awk '$2 == 200 { exit } { n++ } END { print n + 0 }' $state/asked)"
    say "answered $(answered)"
    say "refused_after $(refused_after)"
    say_stats stats
    cp $config $config.plain
}

# Asks once from the given address; prints the status, or 000 for no answer.
ask_from() {
    ip netns exec clients curl -s -o /dev/null -w '%{http_code}' --max-time 5 --interface "$1" http://198.51.100.1/
}

# A boot with a fault: the client has its limit and no more, and the denied address gets no answer.
faulty_boot() {
    until_running
    until_asked
    say "$1.unit $(unit_state)"
    say "$1.answered $(answered)"
    say "$1.refused_after $(refused_after)"
    say "$1.denied $(ask_from 198.51.100.102)"
    say_stats "$1.stats"
    ratelimitd stats --json >/tmp/stats.json 2>&1 && say "$1.json $(tr -d '\n' </tmp/stats.json | head -c 4000)"
    mend_"$1"
}

# The configuration of every faulty boot: a deny list besides, which is good unless the boot breaks it.
with_list() {
    sed "s|^allow = .*|allow = []\ndeny = [\"file:$list\"]|" $config.plain >$config
    good_list >$list
}
good_list() {
    echo 198.51.100.102
    for i in $(seq 198); do echo "203.0.113.$i"; done
}

break_damaged_list() { { good_list && echo 203.0.113.4254.0.2.223; } >$list; }
# The repaired file is taken up without a restart, and becomes the last good copy.
mend_damaged_list() {
    good_list >$list
    ratelimitd reload && say "damaged_list.reloaded yes"
    say_stats damaged_list.repaired
}
break_missing_list() { rm $list; }
mend_missing_list() { :; }
break_missing_interface() { sed -i 's|^interfaces = .*|interfaces = ["web0", "web9"]|' $config; }
mend_missing_interface() { :; }
break_full_state() { :; }
mend_full_state() { say "full_state.room $(df --output=avail /var/lib/ratelimitd | tail -n 1 | tr -d ' ')"; }
# No host has this address.
break_unreachable_store() {
    (umask 077 && head -c 32 /dev/urandom | base64 >/etc/ratelimitd/fleet.secret)
    printf '\n[fleet]\nurl = "redis://198.51.100.200:6379"\nsecret_file = "/etc/ratelimitd/fleet.secret"\nhosts = 4\n' >>$config
}
mend_unreachable_store() { :; }
break_wrong_clock() { :; }
# The clock is set right, as NTP does it: the client's window goes on.
mend_wrong_clock() {
    say "wrong_clock.year $(date +%Y)"
    date --set="@$(($(cat $state/booted) + $(cut -d. -f1 /proc/uptime)))"
    say "wrong_clock.after_step $(ask_from 198.51.100.101) $(ask_from 198.51.100.101) $(ask_from 198.51.100.101)"
    say "wrong_clock.unit_after_step $(unit_state)"
}

# The boot after the given one; nothing after the last.
boot_after() { echo "$boots" | tr ' ' '\n' | grep -A 1 -x "$1" | sed -n 2p; }

test_boot() {
    name=$(boot)
    case $name in
    install) first_boot; return ;;
    plain) plain_boot ;;
    *) faulty_boot "$name" ;;
    esac
    fault=$(boot_after "$name")
    if [ -z "$fault" ]; then
        say "end yes"
        systemctl poweroff
    else
        with_list
        break_"$fault"
        next_boot "$fault"
    fi
}

mkdir -p $state
case $1 in
lab) lab ;;
client) client ;;
test) test_boot ;;
esac
