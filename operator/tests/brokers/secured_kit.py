"""A real broker with an authorizer and SASL, and a client that uses a User's Secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.config.properties import parse_properties

SCRAM, OLD_SCRAM = "SCRAM-SHA-512", "SCRAM-SHA-256"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class SecuredBroker:
    """Addresses of a broker: for the operator, which is a super user, and for clients with SASL."""

    plain: str
    sasl: str


@contextmanager
def secured_broker(home: Path) -> Iterator[SecuredBroker]:
    """Run a broker for the duration of the block."""
    from node_kit import Process, port_of, reserved_port

    ports = [reserved_port(), reserved_port()]
    plain, sasl = (f"127.0.0.1:{port_of(port)}" for port in ports)
    settings = (
        f"listeners=PLAINTEXT://{plain},SASL_PLAINTEXT://{sasl}",
        f"sasl.enabled.mechanisms={SCRAM},{OLD_SCRAM}",
        "authorizer.class.name=StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    broker = Process(home, *arguments, listen=("--http-port", "-1"))
    try:
        broker.ready()
        yield SecuredBroker(plain, sasl)
    finally:
        broker.kill()
        for port in ports:
            port.close()


def produced(properties: str, address: str, topic: str) -> str:
    """Produce a record with the Secret's file, as librdkafka reads it. Return "ok", or the name of the error."""
    settings: dict[str, Any] = {entry.name: entry.value for entry in parse_properties(properties, "client.properties")}
    errors: list[KafkaError] = []
    outcome: list[str] = []
    producer = Producer(settings | {"bootstrap.servers": address, "error_cb": errors.append})
    try:
        producer.produce(topic, b"x", on_delivery=lambda error, _: outcome.append(error.name() if error else "ok"))
        for _ in range(round(PATIENCE_S / 0.1)):
            producer.poll(0.1)
            if outcome or any(error.code() == KafkaError._AUTHENTICATION for error in errors):
                break
    except KafkaException as error:
        errors.append(error.args[0])
    if not outcome:
        producer.purge()
    producer.flush(PATIENCE_S)
    return errors[0].name() if errors else outcome[0]
