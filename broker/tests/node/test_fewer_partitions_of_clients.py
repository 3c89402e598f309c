"""kafka-python and aiokafka produce and consume while their topics get fewer partitions, on three brokers.

`tests/java` and `tests/go` do the same with Apache's Java client and franz-go.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from cluster_processes import Cluster
from confluent_kafka.admin import AdminClient, NewTopic
from flow_kit import PARTITIONS, AiokafkaFlow, KafkaPythonFlow, shrink_while_running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EXPIRED = frozenset({"KafkaTimeoutError", "NotLeaderForPartitionError"})
"""Errors of records that expired before they were sent, of kafka-python and of aiokafka."""


def test_kafka_python_and_aiokafka_receive_each_acknowledged_record_once(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = ["of-kafka-python", "of-aiokafka"]
    settings = {"min.insync.replicas": "2"}
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 3, config=settings) for name in names]).values():
        created.result()
    with ExitStack() as stack:
        flows = [KafkaPythonFlow(cluster.bootstrap, names[0]), AiokafkaFlow(cluster.bootstrap, names[1])]
        for flow in flows:
            stack.callback(flow.end)
        shrink_while_running(cluster.bootstrap, flows, EXPIRED)
