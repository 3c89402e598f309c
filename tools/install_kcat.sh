#!/bin/sh
# kcat is one of the clients that the end-to-end tests drive. It is no Python package, so `make setup` asks apt for it
# where that needs no password, and names the cure where it cannot. Called by `make setup` and `make test`.
set -eu
. "${0%/*}/apt.sh"

command -v kcat >/dev/null && exit 0

cure() {
    echo "make: the end-to-end tests need kcat, and $1." >&2
    echo "Cure: install it ('sudo apt-get install kcat' on Debian and Ubuntu; package 'kcat' or 'kafkacat' elsewhere), then run make again." >&2
    echo "'make demo' and 'make lint' do without it." >&2
    exit 1
}

may_use_apt || cure "$why_not"
apt_install kcat || cure "apt-get could not install it (its last lines are above)"
command -v kcat >/dev/null || cure "apt-get installed it where PATH does not look"
