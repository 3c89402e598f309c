"""A worker of a share group: rejects some records and accepts the others. Runs where brokers' names resolve.

worker.py SETTINGS TOPIC GROUP COUNT REJECTED    take COUNT records, reject those whose value contains REJECTED (empty:
                                                 none), and print the values as a JSON list

SETTINGS are librdkafka's, as JSON. Requires only confluent-kafka, for client pods.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import AcknowledgeType, ShareConsumer

TIMEOUT_S = 120.0


def work(settings: dict[str, str], topic: str, group: str, count: int, rejected: str) -> list[str]:
    """Return the values of the records, once all of them are acknowledged. Raises `SystemExit` after `TIMEOUT_S`."""
    consumer = ShareConsumer({**settings, "group.id": group, "share.acknowledgement.mode": "explicit"})
    values: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.subscribe([topic])
        while len(values) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(values)} of {count} records within {TIMEOUT_S:.0f} s: {values}")
            for message in consumer.poll(1.0):
                if message.error() is not None:
                    continue
                value = message.value().decode()
                is_rejected = bool(rejected) and rejected in value
                consumer.acknowledge(message, AcknowledgeType.REJECT if is_rejected else AcknowledgeType.ACCEPT)
                values.append(value)
            consumer.commit_sync(30.0)
    finally:
        consumer.close()
    return values


if __name__ == "__main__":
    _, connection, topic_name, group_id, wanted, text = sys.argv
    print(json.dumps(work(json.loads(connection), topic_name, group_id, int(wanted), text)))
