"""`kafka.*`: how to reach the brokers, and what of the Java client's settings has a meaning here.

Called by `source` and `sink`, which add what only one of them has.
"""

from __future__ import annotations

import re
from dataclasses import replace

from penstock_spark.model.connection import Connection
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.security import take_security
from penstock_spark.options.text import Options

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
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_+]{1,64}://)?(\[[0-9A-Fa-f:.%]{2,64}\]|[^\s:,\[\]/]{1,255}):([0-9]{1,5})")
MAX_TIMEOUT_MS = 2**31 - 1


def take_connection(options: Options, give_up_ms: int) -> Connection:
    """`give_up_ms`: for how long what fails is repeated; source and sink take it from options of their own."""
    bootstrap = options.take_text(BOOTSTRAP)
    if bootstrap is None:
        raise InvalidOption(f"option {BOOTSTRAP!r} is needed: host:port of one broker or, with commas between, several")
    tls, sasl = take_security(options)
    usual = Connection(addresses(bootstrap))
    return replace(
        usual,
        tls=tls,
        sasl=sasl,
        client_id=options.take_text("kafka.client.id") or usual.client_id,
        connect_timeout_ms=options.take_whole(CONNECT_TIMEOUT, usual.connect_timeout_ms, 1, MAX_TIMEOUT_MS),
        request_timeout_ms=options.take_whole(REQUEST_TIMEOUT, usual.request_timeout_ms, 1, MAX_TIMEOUT_MS),
        give_up_ms=give_up_ms,
    )


def addresses(text: str) -> str:
    """Checked, and without blanks and protocol, so that the same brokers make the same connection."""
    found: list[str] = []
    for one in text.split(","):
        matched = _ADDRESS.fullmatch(one.strip())
        if matched is None or not 0 < int(matched[2]) < 65536:
            raise InvalidOption(f"option {BOOTSTRAP!r} is host:port[,host:port ...]; {one.strip()!r} is not host:port")
        found.append(f"{matched[1]}:{matched[2]}")
    return ",".join(found)
