#!/bin/sh
# The preStop hook of executor pods if spark.decommission.enabled is set. The executor accepts no more tasks, finishes
# the running ones, migrates its blocks, and exits. The pod's grace period limits the wait.
set -eu
kill -PWR 1
while kill -0 1 2>/dev/null; do sleep 0.5; done
