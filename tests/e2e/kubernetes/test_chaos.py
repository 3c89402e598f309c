"""Random harm under load: nothing acknowledged is lost, the conditions are true, and the cluster recovers by itself.

`E2E_STEPS` is the number of steps and `E2E_SEED` chooses them. A line `chaos: ...` (`ARGS=-s`) has each step. Stops
programs and nodes of the local cluster, so that nothing else may use it meanwhile."""

from __future__ import annotations

import os
import random
import time

import pytest
from penstock_kubernetes.chaos import BROKERS, MEMBERS, STEPS, Step
from penstock_kubernetes.kubectl import eventually
from penstock_kubernetes.release import TOPICS, Make, Release
from penstock_kubernetes.truth import StatusObserver

COUNT, SEED = int(os.environ.get("E2E_STEPS", "30")), int(os.environ.get("E2E_SEED", "1"))
pytestmark = [pytest.mark.full, pytest.mark.timeout(600 + 240 * COUNT)]
MAX_GAP_S = 8.0
RECOVERY_S = 120


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    if "LOCAL_CLUSTER" not in os.environ:
        pytest.fail("needs the scripts of a local cluster: NODES=3 make e2e-full CLUSTER=local LOCAL_CLUSTER=...")
    release: Release = make_release("chaos", brokers=BROKERS, etcd=MEMBERS)
    release.install()
    for topic in ("load", "keyed"):
        release.kubectl.apply(release.topic(topic, partitions=6, replicas=3, config={"min.insync.replicas": "2"}))
        release.kubectl.wait(TOPICS, topic)
    return release


def choose() -> list[Step]:
    """Return the steps: each kind as often as any other, give or take one, in a random order."""
    chance, chosen = random.Random(SEED), list[Step]()
    while len(chosen) < COUNT:
        chosen += chance.sample(STEPS, len(STEPS))
    return chosen[:COUNT]


def test_random_harm_loses_nothing_and_the_cluster_recovers_by_itself(release: Release) -> None:
    release.settle()
    chance = random.Random(SEED)
    with (
        release.clients.load(release.connection, "load") as load,
        release.clients.keyed_load(release.connection, "keyed", 20) as keyed,
        StatusObserver(release, BROKERS, MEMBERS) as observer,
    ):
        for number, step in enumerate(choose()):
            if step.loses_data:
                began = time.monotonic()
                eventually(f"all copies are complete before: {step.name}", release.is_settled, 300, 1)
                print(f"chaos: settled after {time.monotonic() - began:.0f} s")
            print(f"chaos: {time.strftime('%H:%M:%S')} step {number}: {step.name}", flush=True)
            with observer.hidden(step.hides_pods):
                print(f"chaos: {step.act(release, chance)}", flush=True)
            time.sleep(chance.uniform(0, MAX_GAP_S))  # The next step comes at any moment of the recovery.
        began = time.monotonic()
        eventually("the cluster has settled", release.is_settled, RECOVERY_S, 0.5)
        print(f"chaos: settled {time.monotonic() - began:.0f} s after the last step")
    assert observer.findings == []
    load.verify()
    assert keyed.summary["findings"] == {client: [] for client in keyed.summary["acknowledged"]}
