"""Commits an offset for each of many consumer groups: `offsets.py CONNECTION TOPIC PREFIX COUNT`. `CONNECTION` is
librdkafka's settings as JSON. Groups are called PREFIX-0 and so on."""

from __future__ import annotations

import json
import sys

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

GROUPS_AT_A_TIME = 100


def main() -> None:
    connection, topic, prefix, count = sys.argv[1:]
    admin = AdminClient(json.loads(connection))
    numbers = range(int(count))
    for first in range(0, len(numbers), GROUPS_AT_A_TIME):
        futures = []
        for number in numbers[first : first + GROUPS_AT_A_TIME]:
            # librdkafka takes one group in each call.
            offsets = ConsumerGroupTopicPartitions(f"{prefix}-{number}", [TopicPartition(topic, 0, 0)])
            futures += admin.alter_consumer_group_offsets([offsets]).values()
        for future in futures:
            future.result(60)
    print(count)


if __name__ == "__main__":
    main()
