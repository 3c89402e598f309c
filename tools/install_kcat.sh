#!/bin/sh
# kcat is one of the clients that the end-to-end tests drive. It is no Python package, so `make setup` asks apt for it
# where that needs no password, and names the cure where it cannot. Called by `make setup` and `make test`.
set -eu

command -v kcat >/dev/null && exit 0

cure() {
    echo "make: the end-to-end tests need kcat, and $1." >&2
    echo "Cure: install it ('sudo apt-get install kcat' on Debian and Ubuntu; package 'kcat' or 'kafkacat' elsewhere), then run make again." >&2
    echo "'make demo' and 'make lint' do without it." >&2
    exit 1
}

command -v apt-get >/dev/null || cure "there is no apt-get here to install it with"
if [ "$(id -u)" -eq 0 ]; then
    as_root() { env "$@"; }
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root() { sudo -n env "$@"; }
else
    cure "installing it takes root or passwordless sudo"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing kcat with apt-get"
install_kcat() { as_root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends kcat; }
# The package list may be fresh enough already; fetching it is the slow part.
install_kcat >"$log" 2>&1 </dev/null || {
    as_root apt-get update >>"$log" 2>&1 </dev/null && install_kcat >>"$log" 2>&1 </dev/null
} || { tail -n 20 "$log" >&2; cure "apt-get could not install it (its last lines are above)"; }
command -v kcat >/dev/null || cure "apt-get installed it where PATH does not look"
