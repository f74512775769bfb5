# Finds a Docker engine, or starts one while a script runs: sourced after common.sh, never run.
# shellcheck shell=bash

engine_seconds=60
engine_work=
engine_process=
bridge_is_ours=

engine_answers() {
    timeout 10 docker version >/dev/null 2>&1
}

# Debian starts the service of docker.io on installation unless this policy file forbids it.
install_engine() {
    local policy=/usr/sbin/policy-rc.d placed='' status=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        placed=yes
    fi
    apt_install docker.io debootstrap || status=$?
    [ -z "$placed" ] || rm -f "$policy"
    return "$status"
}

# Neither firewall rules nor forwarding are needed: the engine's proxy serves the loopback ports.
start_engine() {
    engine_work=$(mktemp -d -t streamdedup-engine-XXXXXX)
    ip link show docker0 >/dev/null 2>&1 || bridge_is_ours=yes
    setsid dockerd --data-root "$engine_work/data" --exec-root "$engine_work/exec" \
        --pidfile "$engine_work/pid" --host "unix://$engine_work/docker.sock" \
        --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        >"$engine_work/log" 2>&1 </dev/null &
    engine_process=$!
    export DOCKER_HOST="unix://$engine_work/docker.sock"
    local deadline=$((SECONDS + engine_seconds))
    until engine_answers; do
        kill -0 "$engine_process" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.5
    done
}

# Stop the engine of start_engine, if it runs, and remove all its files.
stop_engine() {
    [ -n "$engine_work" ] || return 0
    if [ -n "$engine_process" ] && kill -0 "$engine_process" 2>/dev/null; then
        kill -TERM "$engine_process"
        wait "$engine_process" || true
    fi
    awk -v work="$engine_work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | sort -r |
        xargs -r -n 1 umount || true
    [ -z "$bridge_is_ours" ] || ip link delete docker0 2>/dev/null || true
    rm -rf --one-file-system "$engine_work" || true
}

# Ensure that an engine answers; if none can be started, call go_without of the calling script.
ensure_engine() {
    engine_answers && return
    [ "$(id -u)" -eq 0 ] || go_without "No Docker engine answers, and only root can start one."
    command -v dockerd >/dev/null && command -v debootstrap >/dev/null || install_engine ||
        go_without "Debian's docker.io and debootstrap could not be installed."
    start_engine ||
        go_without "dockerd does not start on this machine; the end of its log:" \
            "$(tail -n 5 "$engine_work/log")"
}
