"""A cluster whose brokers log in to each other with SCRAM, and whose sessions are short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import Cluster, in_sync, read_all, running, write
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from node_kit import DEADLINE_S, Process, port_of, reserved_port
from secrets_kit import secret

from penstock.client import Admin, AlterConfig, NewTopic, Producer

pytestmark = pytest.mark.integration

PASSWORD = secret("broker-pw-3d1c")
SESSION_MS = 1000
JAAS = "listener.name.in.scram-sha-512.sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def jaas(password: str) -> str:
    return f'{MODULE} required username="brokers" password="{password}";'


class LoggedIn(Cluster):
    """Brokers with a plain listener for the tests and one with SCRAM for each other."""

    def __init__(self, home: Path) -> None:
        self.password = PASSWORD
        (home / "password").write_text(PASSWORD)
        super().__init__(
            home,
            [
                "listener.security.protocol.map=OUT:PLAINTEXT,IN:SASL_PLAINTEXT",
                "inter.broker.listener.name=IN",
                "sasl.enabled.mechanisms=SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
                f"connections.max.reauth.ms={SESSION_MS}",
                "connection.failed.authentication.delay.ms=10",
            ],
        )

    def begin(self, broker_id: int, *more: str, **options: object) -> Process:
        if broker_id not in self.ports:
            self.ports[broker_id] = reserved_port()
        out = f"OUT://127.0.0.1:{port_of(self.ports[broker_id])}"
        return super().begin(
            broker_id,
            *("--listener", out, "--listener", "IN://127.0.0.1:0"),
            *("--set", f"{JAAS}={jaas(self.password)}"),
            *("--bootstrap-user", "brokers", "--bootstrap-password-file", str(self.home / "password")),
            *more,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LoggedIn]:
    with running(LoggedIn(tmp_path)) as made:
        yield made


async def test_brokers_replicate_over_several_sessions_and_one_with_a_wrong_password_is_kept_out(
    cluster: LoggedIn,
) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 300)
        await in_sync(admin, "t", 1, 2, 3)
        cluster.brokers[3].kill()
        await in_sync(admin, "t", 1, 2)
        cluster.password = secret("broker-pw-wrong")
        stranger = cluster.begin(3).ready()
        for _ in range(3):
            sent += await write(producer, "t", len(sent), 100)
            await in_sync(admin, "t", 1, 2)
        stranger.kill()
        cluster.password = PASSWORD
        cluster.begin(3).ready()
        await in_sync(admin, "t", 1, 2, 3)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


async def test_the_password_of_the_brokers_changes_without_a_restart(cluster: LoggedIn) -> None:
    changed = secret("broker-pw-77e0")
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 100)
        await asyncio.to_thread(set_password, cluster.bootstrap, "brokers", changed)
        for broker_id in cluster.brokers:
            await admin.alter_broker_configs(broker_id, [AlterConfig(JAAS, jaas(changed))])
        cluster.brokers[3].kill()
        sent += await write(producer, "t", len(sent), 100)
        await in_sync(admin, "t", 1, 2)
        cluster.begin(3).ready()  # its static settings have the old password
        await in_sync(admin, "t", 1, 2, 3)
        sent += await write(producer, "t", len(sent), 100)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


def set_password(bootstrap: str, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(user, info, password.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its deletion would cancel the request
    admin.alter_user_scram_credentials([upsertion])[user].result(DEADLINE_S)
