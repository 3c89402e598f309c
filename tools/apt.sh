# For scripts that install packages of Debian's where that needs no password. To be sourced.

# Whether there is an apt-get that may be used; defines as_root. Says in $why_not why there is none.
may_use_apt() {
    why_not="there is no apt-get here to install it with"
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -eq 0 ]; then
        as_root() { env "$@"; }
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root() { sudo -n env "$@"; }
    else
        why_not="installing it takes root or passwordless sudo"
        return 1
    fi
}

# apt_install PACKAGE: what apt says goes to $log, and its last lines to the terminal where it fails.
apt_install() {
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    echo "installing $1 with apt-get"
    try() { as_root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1"; }
    # The package list may be fresh enough already; fetching it is the slow part.
    try "$1" >"$log" 2>&1 </dev/null || {
        as_root apt-get update >>"$log" 2>&1 </dev/null && try "$1" >>"$log" 2>&1 </dev/null
    } || { tail -n 20 "$log" >&2; return 1; }
}

# apt_download PACKAGE: fetch the package into the current folder; needs no root unless there is no package list yet.
apt_download() {
    echo "downloading $1 with apt-get"
    fetch() { apt-get download -q "$1"; }
    fetch "$1" >apt.log 2>&1 </dev/null || {
        may_use_apt && as_root apt-get update >>apt.log 2>&1 </dev/null && fetch "$1" >>apt.log 2>&1 </dev/null
    } || { tail -n 20 apt.log >&2; return 1; }
}
