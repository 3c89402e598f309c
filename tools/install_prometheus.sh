#!/bin/sh
# Prometheus and promtool, for the tests of the chart's alerts. They are no Python package, so they are unpacked from
# Debian's package into .cache/prometheus, which needs neither root nor the package's dependencies (fonts and scripts of
# its web pages). Called by `make chart` and by tests/e2e/kubernetes/run.sh.
set -eu
cd "${0%/*}/.."
. tools/apt.sh
folder=.cache/prometheus

command -v promtool >/dev/null && command -v prometheus >/dev/null && exit 0
[ ! -x "$folder/usr/bin/promtool" ] || exit 0

cure() {
    echo "make: the tests of the alerts need prometheus and promtool, and $1." >&2
    echo "Cure: install them (package 'prometheus' on Debian and Ubuntu), then run make again." >&2
    exit 1
}

command -v apt-get >/dev/null || cure "there is no apt-get here to download them with"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# apt-get as root gives up its rights for the download.
chmod 755 "$made"
(cd "$made" && apt_download prometheus) || cure "apt-get could not download them (its last lines are above)"
mkdir -p .cache
dpkg-deb --extract "$made"/prometheus_*.deb "$made/unpacked"
rm -rf "$folder"
mv "$made/unpacked" "$folder"
