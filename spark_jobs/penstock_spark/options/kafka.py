"""`kafka.*` options for connections, with the meaning that they have in the Java client.

Called by `source` and `sink`, which add their own options.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.config.addresses import InvalidAddress, join_host_port, parse_bootstrap
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.security import pop_security
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


def pop_connection(options: OptionReader, give_up_ms: int) -> ConnectionOptions:
    """Return the connection. `give_up_ms` is the retry timeout, which source and sink read from different options."""
    bootstrap = options.pop_text(BOOTSTRAP)
    if bootstrap is None:
        raise InvalidOption(f'option "{BOOTSTRAP}" is missing; set it to host:port, comma-separated if several')
    tls, sasl = pop_security(options)
    defaults = ConnectionOptions(addresses(bootstrap, has_tls=tls is not None, has_sasl=sasl is not None))
    return replace(
        defaults,
        tls=tls,
        sasl=sasl,
        client_id=options.pop_text("kafka.client.id") or defaults.client_id,
        connect_timeout_ms=options.pop_int(CONNECT_TIMEOUT, defaults.connect_timeout_ms, 1, MAX_TIMEOUT_MS),
        request_timeout_ms=options.pop_int(REQUEST_TIMEOUT, defaults.request_timeout_ms, 1, MAX_TIMEOUT_MS),
        give_up_ms=give_up_ms,
    )


def addresses(text: str, *, has_tls: bool = False, has_sasl: bool = False) -> str:
    """Return valid addresses without spaces and protocol, so that equal brokers give equal connections."""
    try:
        found = parse_bootstrap(text, has_tls=has_tls, has_sasl=has_sasl)
    except InvalidAddress as e:
        raise InvalidOption(f'option "{BOOTSTRAP}": {e}') from None
    return ",".join(join_host_port(host, port) for host, port in found)
