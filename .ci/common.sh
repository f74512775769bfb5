# Functions for the scripts in this folder: sourced, never run.
# shellcheck shell=bash

export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
export DEBIAN_FRONTEND=noninteractive

# Print the arguments, one per line, in a frame.
loudly() {
    local line border
    border=$(printf '#%.0s' {1..78})
    {
        printf '\n%s\n' "$border"
        for line in "$@"; do
            printf '#  %s\n' "$line"
        done
        printf '%s\n\n' "$border"
    } >&2
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# Install Debian packages; the package lists are updated only once in a run.
apt_install() {
    if [ -z "${APT_LISTS_UPDATED:-}" ]; then
        as_root apt-get update -qq </dev/null || return
        export APT_LISTS_UPDATED=1
    fi
    as_root apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}
