# Hides this machine from the scene: its sockets, its state and its resolvers. The mounts are those of a namespace of
# their own. Then records the scene: stage.sh SCENE CAST
set -euo pipefail
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount -t bpf none /sys/fs/bpf
hosts=$(mktemp --tmpdir=/run)
mount --bind "$hosts" "$(realpath /etc/resolv.conf)"
export TERM=xterm-256color LC_ALL=C.UTF-8 PS1= HOME=/run
exec asciinema rec --quiet --overwrite --cols 96 --rows 24 --command "bash $1" "$2"
