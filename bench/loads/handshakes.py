"""TLS connections one after the other: the cost of a full handshake, with the request that each client sends first."""

from __future__ import annotations

import gc
import socket
import ssl

from bench import wire
from bench.loads.section import Section
from bench.loads.specs import Handshakes as Spec
from bench.loads.specs import Metrics

WARM_UP = 20


def run(spec: Spec) -> Metrics:
    """Run the load; a "message" of the metrics is a connection. Raises OSError if the broker refuses one."""
    context = ssl.create_default_context(cafile=spec.authority)
    if spec.certificate:
        context.load_cert_chain(spec.certificate)
    for _ in range(WARM_UP):
        _connect(context, spec)
    gc.disable()
    section = Section(spec.broker_pids)
    for _ in range(spec.connections):
        _connect(context, spec)
    metrics = section.finish(spec.connections, 0)
    return {**metrics, "per_cpu_s": spec.connections / metrics["broker_cpu_s"]}


def _connect(context: ssl.SSLContext, spec: Spec) -> None:
    """Handshake, ask for the API versions, and end the session. No session is resumed, as in librdkafka and Java."""
    host, port = spec.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=spec.limit_s) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(wire.api_versions_request())
            if not connection.recv(65536):
                raise ConnectionError(f"the broker at {spec.address} closed the connection without a response")
