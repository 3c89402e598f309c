#!/bin/sh
# Runs before an executor's pod is ended (Spark names it as the pod's preStop hook where spark.decommission.enabled):
# tells the executor to take no more tasks, finish those it has and hand its blocks to others, and waits until it is
# gone. The pod's grace period bounds the wait; after it the executor is lost as it would be without this.
set -eu
kill -PWR 1
while kill -0 1 2>/dev/null; do sleep 0.5; done
