"""`kafka.*`: how to reach the brokers, and what of the Java client's settings has a meaning here.

Called by `source` and `sink`, which add what only one of them has.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.config.addresses import InvalidAddress, join_host_port, parse_bootstrap
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.security import take_security
from penstock_spark.options.text import OptionReader

BOOTSTRAP = "kafka.bootstrap.servers"
CONNECT_TIMEOUT = "kafka.socket.connection.setup.timeout.ms"
REQUEST_TIMEOUT = "kafka.request.timeout.ms"
COMMON = (
    BOOTSTRAP,
    "kafka.client.id",
    CONNECT_TIMEOUT,
    REQUEST_TIMEOUT,
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.type",
    "kafka.ssl.truststore.password",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.keystore.password",
    "kafka.ssl.key.password",
    "kafka.ssl.endpoint.identification.algorithm",
)
MAX_TIMEOUT_MS = 2**31 - 1


def take_connection(options: OptionReader, give_up_ms: int) -> ConnectionOptions:
    """`give_up_ms`: for how long what fails is repeated; source and sink take it from options of their own."""
    bootstrap = options.take_text(BOOTSTRAP)
    if bootstrap is None:
        raise InvalidOption(f"option {BOOTSTRAP!r} is needed: host:port of one broker or, with commas between, several")
    tls, sasl = take_security(options)
    usual = ConnectionOptions(addresses(bootstrap, has_tls=tls is not None, has_sasl=sasl is not None))
    return replace(
        usual,
        tls=tls,
        sasl=sasl,
        client_id=options.take_text("kafka.client.id") or usual.client_id,
        connect_timeout_ms=options.take_whole(CONNECT_TIMEOUT, usual.connect_timeout_ms, 1, MAX_TIMEOUT_MS),
        request_timeout_ms=options.take_whole(REQUEST_TIMEOUT, usual.request_timeout_ms, 1, MAX_TIMEOUT_MS),
        give_up_ms=give_up_ms,
    )


def addresses(text: str, *, has_tls: bool = False, has_sasl: bool = False) -> str:
    """Checked, and without blanks and protocol, so that the same brokers make the same connection."""
    try:
        found = parse_bootstrap(text, has_tls=has_tls, has_sasl=has_sasl)
    except InvalidAddress as e:
        raise InvalidOption(f"option {BOOTSTRAP!r}: {e}") from None
    return ",".join(join_host_port(host, port) for host, port in found)
