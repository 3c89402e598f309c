"""Both services with SASL/PLAIN users and ACLs, and connections that are authenticated as one of the users."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.peers.broker import free_port
from bench.peers.kafka import Kafka
from bench.peers.penstock import DEFAULT_COMMAND, Penstock
from bench.peers.service import Service
from penstock_differential import codec
from penstock_differential.peers import COMMON, KAFKA_ALONE, KAFKA_HEAP, NOT_PENSTOCKS, ServicePair
from penstock_differential.sides import ANSWER_LIMIT_S, POLL_S, PipelinedConnection, Side

SUPER_USER = "root"
USERS = 160
"""Number of users; each case has one, so that no case has the rights of another."""
PASSWORD = "of-all-users"
LISTENER = "SASL_PLAINTEXT"
UP_COMMAND = DEFAULT_COMMAND.replace(" --port {port}", "")
"""`penstock up` without a port: `listeners` has it."""
JAAS = f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config"


def user_name(number: int) -> str:
    """Return the name of the user of a case."""
    return f"u{number}"


def secured_settings(port: int, internal_port: int, allows_unprotected: bool) -> dict[str, str]:
    """Return the settings of a broker with an authorizer. Brokers use a listener without authentication."""
    users = [SUPER_USER, *map(user_name, range(USERS))]
    options = " ".join(f'user_{name}="{PASSWORD}"' for name in users)
    return {
        "listeners": f"{LISTENER}://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal_port}",
        "listener.security.protocol.map": f"{LISTENER}:{LISTENER},INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "PLAIN",
        JAAS: f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{SUPER_USER};User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": str(allows_unprotected).lower(),
        "auto.create.topics.enable": "true",
        "default.replication.factor": "1",
    }


def authenticated(address: str, user: str) -> PipelinedConnection:
    """Return a connection that is authenticated by SASL/PLAIN. Raises ConnectionError if the broker refuses."""
    connection = PipelinedConnection(address, ANSWER_LIMIT_S)
    token = f"\0{user}\0{PASSWORD}".encode()
    for api, tree in (("SaslHandshake", {"mechanism": "PLAIN"}), ("SaslAuthenticate", {"auth_bytes": token})):
        answer = codec.response_tree(api, 1, connection.ask(codec.request_frame(api, 1, tree)))
        if answer["error_code"]:
            connection.close()
            raise ConnectionError(f"{address} refuses {user}: {api} answers error {answer['error_code']}")
    return connection


def wait_until_authenticating(address: str, deadline: float) -> None:
    """Wait until a broker authenticates the super user. Raises TimeoutError at `deadline` (time.monotonic)."""
    while True:
        try:
            authenticated(address, SUPER_USER).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker at {address} does not authenticate {SUPER_USER}") from None
            time.sleep(POLL_S)


class SecuredKafka(Kafka):
    """Kafka with SASL/PLAIN and StandardAuthorizer."""

    def __init__(self, allows_unprotected: bool) -> None:
        self.allows_unprotected = allows_unprotected
        super().__init__(jvm_flags=KAFKA_HEAP)

    def _format(
        self, data_dir: Path, port: int, node_id: int, controller_ports: Sequence[int], cluster_id: str, more: str
    ) -> None:
        internal_port = free_port()
        settings = {**COMMON, **KAFKA_ALONE, **secured_settings(port, internal_port, self.allows_unprotected)}
        settings["advertised.listeners"] = settings["listeners"]
        settings["listeners"] += f",CONTROLLER://127.0.0.1:{controller_ports[0]}"
        settings["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        self._properties = "".join(f"{name}={value}\n" for name, value in settings.items())
        super()._format(data_dir, port, node_id, controller_ports, cluster_id, more)

    def wait_until_answering(self, address: str, deadline: float) -> None:
        wait_until_authenticating(address, deadline)


class SecuredPenstock(Penstock):
    """Penstock with SASL/PLAIN and an authorizer."""

    def __init__(self, allows_unprotected: bool) -> None:
        self.allows_unprotected = allows_unprotected
        self.internal_port = free_port()
        super().__init__(UP_COMMAND)

    def command(self, data_dir: Path, port: int) -> list[str]:
        """Return the command line, with the settings of this port."""
        settings = {**COMMON, "node.id": "1", **secured_settings(port, self.internal_port, self.allows_unprotected)}
        given = [f"{name}={value}" for name, value in settings.items() if name not in NOT_PENSTOCKS]
        return [*super().command(data_dir, port), *(part for one in given for part in ("--set", one))]

    def wait_until_answering(self, address: str, deadline: float) -> None:
        wait_until_authenticating(address, deadline)


class SecuredSide(Side):
    """A side whose channels are users: "main" is the super user, another channel the user of this name."""

    def connect(self, channel: str, address: str) -> PipelinedConnection:
        """Return a connection that is authenticated by SASL/PLAIN. Raises ConnectionError if the broker refuses."""
        return authenticated(address, SUPER_USER if channel == "main" else channel)


@contextmanager
def started(work_dir: Path, *, allows_unprotected: bool) -> Iterator[ServicePair]:
    """Run both services with one broker and an authorizer; remove all processes and data at the end."""
    cores = os.sched_getaffinity(0)
    made: list[Service] = []
    try:
        made.append(SecuredPenstock(allows_unprotected).service(cores, work_dir))
        made.append(SecuredKafka(allows_unprotected).service(cores, work_dir))
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(lambda service: service.start(), made))
        yield ServicePair(*made)
    finally:
        for service in made:
            service.remove()
