#!/bin/sh
# Spark runs on Java 17 or newer, which is no Python package. Where there is none, apt is asked for it if that needs no
# password, and else the PyPI package install-jdk, which puts one into the user's cache. The argument is penstock-spark,
# which finds both and says how each platform gets one. Called by `make setup`, `make test` and `make demo`.
set -eu
. "${0%/*}/apt.sh"

spark=$1
"$spark" java >/dev/null 2>&1 && exit 0
if may_use_apt; then
    for version in 17 21; do # a release of Debian or Ubuntu has one of them at least
        if apt_install "openjdk-$version-jre-headless" && "$spark" java; then exit 0; fi
    done
fi
exec "$spark" java --install
