"""segmentio/kafka-go's suite: one broker, which must be localhost:9092, and 9093 with SASL, with an id other than 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock_suites import gotests
from penstock_suites.brokers import Layout
from penstock_suites.lists import Outcome
from penstock_suites.security import SCRAM_256, SCRAM_512, Security
from penstock_suites.sources import GoModule
from penstock_suites.suite import Run, nothing_else

LIMIT_S = 900
PACKAGES = (".", "./sasl")


class KafkaGo:
    """segmentio/kafka-go's suite."""

    name = "kafka-go"
    source = GoModule("github.com/segmentio/kafka-go", "v0.4.51", "h1:JgDPPG75tC1rWIS2Me6MwcvXJ6f49UQ4HjAOef71Hno=")
    around = staticmethod(nothing_else)

    def layout(self, brokers: int | None) -> Layout:
        del brokers
        settings = {"auto.create.topics.enable": "true", "message.max.bytes": "200000000"}
        # Otherwise a group's first member reads the records that the tests expect the second to read.
        settings["group.initial.rebalance.delay.ms"] = "3000"
        security = Security(
            {"SASL": "SASL_PLAINTEXT"},
            ports={"SASL": 9093},
            plain={"adminplain": "admin-secret"},
            scram=[(SCRAM_256, "adminscram", "admin-secret-256"), (SCRAM_512, "adminscram", "admin-secret-512")],
        )
        return Layout(settings=settings, advertised={1: "localhost:9092"}, ports={1: 9092}, security=security)

    def build(self) -> Path:
        return self.source.fetch()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        # The version that the suite's own instructions specify for all newer brokers.
        return gotests.run(
            run, PACKAGES, [], LIMIT_S, KAFKA_SKIP_NETTEST="1", KAFKA_VERSION="2.3.1", GOFLAGS="-mod=mod"
        )
