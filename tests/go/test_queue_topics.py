"""franz-go with a topic whose records are scheduled, and with one that gets fewer partitions, on three brokers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import Cluster, running
from confluent_kafka.admin import AdminClient, NewTopic
from flow_kit import PARTITIONS, ProgramFlow, shrink_while_running

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("go-queues")]

HERE = Path(__file__).parent
BUILD_LIMIT_S, LIMIT_S = 500, 90
DELAY_MS = 1_500
RECORDS = [
    f"penstock-deliver-after-ms/{DELAY_MS}/k/1",
    f"penstock-deliver-after-ms/{DELAY_MS}/k/2",
    "//p/plain",
    f"penstock-deliver-after-ms/{DELAY_MS}/k/3",
    f"penstock-deliver-after-ms/{DELAY_MS}/c/cancelled",
    "penstock-cancel-scheduled//c/",
    f"penstock-deliver-after-ms/{DELAY_MS + 1}/k/4",
    "//p/end",
]
DELIVERED = ["plain", "end", "1", "2", "3", "4"]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("brokers"))) as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("program") / "clients"
    command = ["go", "build", "-o", str(made), "."]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return str(made)


def create(brokers: Cluster, topic: str, partitions: int, **settings: str) -> None:
    config = {"min.insync.replicas": "2", **settings}
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 3, config=config)])[topic].result()


def test_scheduled_records_are_delivered_at_their_time(brokers: Cluster, program: str) -> None:
    create(brokers, "scheduled", 1, **{"delivery.schedule.enable": "true"})
    begun_s = time.time()
    command = [program, "schedule", brokers.bootstrap, "scheduled", str(len(DELIVERED)), *RECORDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, DELIVERED, "")
    assert time.time() >= begun_s + DELAY_MS / 1000


def test_each_acknowledged_record_is_received_once_while_a_topic_gets_fewer_partitions(
    brokers: Cluster, program: str, tmp_path: Path
) -> None:
    create(brokers, "shrinking", PARTITIONS)
    flow = ProgramFlow([program, "flow"], brokers.bootstrap, "shrinking", tmp_path / "errors.log")
    try:
        shrink_while_running(brokers.bootstrap, [flow])
    finally:
        flow.end()
