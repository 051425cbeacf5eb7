# Scene of the moving picture: commands as a user types them, with their real output. Runs in a terminal of the recorder.

# Types a command, character by character, and runs it.
run() {
    printf '\033[1;32m$\033[0m '
    sleep 1
    local at
    for ((at = 0; at < ${#1}; at++)); do
        printf '%s' "${1:at:1}"
        sleep 0.03
    done
    sleep 0.4
    printf '\n'
    eval "$1"
}

# Root needs no sudo here.
sudo() { "$@"; }

run 'sudo ratelimitd --iface eth0 --limit 100/1m --dry-run &'
sleep 9
printf '\n'
# Ctrl-C ends the second command.
ratelimitd() { timeout --foreground --signal INT 13 ratelimitd "$@"; }
run 'ratelimitd stats --watch'
unset -f ratelimitd
clear
run 'ratelimitd check 198.51.100.23'
sleep 9
