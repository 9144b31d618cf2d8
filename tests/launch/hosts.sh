#!/usr/bin/env bash
# Hosts on this machine: network namespaces NAME-1, NAME-2 … at 10.99.0.1, .2 …, with a bridge in
# another namespace, so that the machine's network is unchanged. Needs root and iproute2.
#
#   hosts.sh up NAME [COUNT]          create them, by default two, at most nine; they end with the
#                                     calling process, even if that is killed
#   hosts.sh run NAME HOST COMMAND…   run on one, with a separate hostname, /dev/shm and /tmp/ray
#   hosts.sh cut NAME HOST            disconnect the host's network cable
#   hosts.sh kill NAME HOST           kill the processes of the host
#   hosts.sh down NAME                kill all processes and remove the hosts
set -euo pipefail
action=$1 name=$2

up() {
    ip netns add "$name-0"
    ip -n "$name-0" link add bridge type bridge
    ip -n "$name-0" link set bridge up
    for host in $(seq "${1:-2}"); do
        ip netns add "$name-$host"
        ip -n "$name-0" link add "port$host" type veth peer name eth0 netns "$name-$host"
        ip -n "$name-0" link set "port$host" master bridge up
        ip -n "$name-$host" link set lo up
        ip -n "$name-$host" addr add "10.99.0.$host/24" dev eth0
        ip -n "$name-$host" link set eth0 up
    done
    setsid bash "$0" guard "$name" "$PPID" > /dev/null 2>&1 < /dev/null &
}

guard() {
    while readlink -q "/proc/$1/exe" > /dev/null; do  # zombies have none
        [ -e "/run/netns/$name-0" ] || return 0
        sleep 1
    done
    down
}

run() {
    local host=$1
    shift
    exec ip netns exec "$name-$host" unshare --uts --mount --propagation private bash -c '
        hostname "host$1"
        mount -t tmpfs none /dev/shm
        mkdir -p /tmp/ray
        mount -t tmpfs none /tmp/ray
        echo "127.0.0.1 localhost" > /dev/shm/hosts
        for other in $(seq 9); do echo "10.99.0.$other host$other" >> /dev/shm/hosts; done
        mount --bind /dev/shm/hosts /etc/hosts
        rm /dev/shm/hosts
        shift
        exec "$@"' _ "$host" "$@"
}

kill_all() {
    ip netns pids "$name-$1" 2> /dev/null | xargs --no-run-if-empty kill -9 || true
}

down() {
    for part in $(seq 0 9); do
        kill_all "$part"
        ip netns del "$name-$part" 2> /dev/null || true
    done
}

case $action in
    up) up "${@:3}" ;;
    down) down ;;
    run) run "${@:3}" ;;
    guard) guard "$3" ;;
    kill) kill_all "$3" ;;
    cut) ip -n "$name-0" link set "port$3" down ;;
    *) echo "unknown action $action" >&2; exit 2 ;;
esac
