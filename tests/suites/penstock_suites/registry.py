"""The suites by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock_suites.suite import GroupProtocol, Suite
from penstock_suites.suites.kafka_go import KafkaGo
from penstock_suites.suites.kafkit import Kafkit
from penstock_suites.suites.librdkafka import Librdkafka
from penstock_suites.suites.platformatic import Platformatic
from penstock_suites.suites.pytests import Aiokafka, ConfluentKafka, KafkaPython
from penstock_suites.suites.sarama import Sarama

SUITES: Mapping[str, Callable[[Path | None], Suite]] = {
    "aiokafka": Aiokafka,
    "sarama": lambda _: Sarama(),
    "librdkafka": lambda _: Librdkafka(),
    "librdkafka-consumer": lambda _: Librdkafka(GroupProtocol.CONSUMER),
    "kafka-go": lambda _: KafkaGo(),
    "kafkit": lambda _: Kafkit(),
    "confluent": ConfluentKafka,
    "confluent-consumer": lambda given: ConfluentKafka(given, GroupProtocol.CONSUMER),
    "kafka-python": KafkaPython,
    "platformatic": Platformatic,
}
"""Functions of the checkout that `--source` names."""
FROM_REGISTRIES = ("sarama", "librdkafka", "librdkafka-consumer", "kafka-go", "kafkit")
"""Suites that need no checkout."""
