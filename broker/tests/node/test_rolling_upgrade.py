"""Rolling upgrade to a build with a higher feature level, downgrade, and second upgrade, while producers write.

The newer build is a copy of this one with a higher level, which adds a field to topic records from that level on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from cluster_processes import Cluster, in_sync, read_all, until, write

import penstock
from penstock.client import Admin, NewTopic, Producer
from penstock.client.admin.types import BrokerVersion
from penstock.client.connection import ClientConnection
from penstock.state import keys
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CHANGES = {
    "control/membership.py": [("FEATURE_LEVEL = 3\n", "FEATURE_LEVEL = 4\n")],
    "state/records.py": [("    partition_count: ", "    remark: str = ''\n    partition_count: ")],
    "control/topic_admin.py": [
        ("TopicRecord(\n", "TopicRecord(\n            remark='level 4' if self.view.feature_level >= 4 else '',\n")
    ],
}


def newer_build(home: Path) -> Path:
    """Return the folder of an edited copy of the source, for PYTHONPATH."""
    copy = home / "newer" / "penstock"
    shutil.copytree(Path(penstock.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in CHANGES.items():
        text = (copy / name).read_text()
        for old, new in changes:
            assert old in text, f"{name} no longer has {old!r}; change the edits of the newer build"
            text = text.replace(old, new, 1)
        (copy / name).write_text(text)
    return copy.parent


async def roll(cluster: Cluster, admin: Admin, build: Path | None) -> None:
    """Stop each broker in turn cleanly and start it from a build."""
    for broker_id in (1, 2, 3):
        assert await asyncio.to_thread(cluster.brokers[broker_id].stop) == 0
        environment = {"PYTHONPATH": str(build)} if build is not None else None
        await asyncio.to_thread(cluster.begin(broker_id, environment=environment).ready)
        await in_sync(admin, "t", 1, 2, 3)


async def raise_level(cluster: Cluster, level: int) -> UpdateFeaturesResponse:
    connection = await ClientConnection.open("127.0.0.1", cluster.brokers[1].port)
    try:
        update = FeatureUpdateKey(feature="penstock.version", max_version_level=level)
        return await connection.call(
            UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse, max_version=1
        )
    finally:
        await connection.close()


async def is_at_level(admin: Admin, level: int) -> None:
    """Wait until every broker has the level, because each of them may be the controller that creates the next topic."""

    async def all_are() -> bool:
        found = await admin.broker_versions()
        return len(found) == 3 and all(isinstance(v, BrokerVersion) and v.level == level for v in found.values())

    await until(all_are, f"all are at level {level}")


async def topic_record(cluster: Cluster, admin: Admin, name: str) -> bytes:
    """Create a topic and return its stored record."""
    await admin.create_topics([NewTopic(name, 1)])
    store = EtcdStore(EtcdOptions(endpoints=cluster.etcd.endpoints))
    try:
        [entry] = [e for e in (await store.range(keys.TOPICS)).entries if f'"{name}"'.encode() in e.value]
    finally:
        await store.close()
    return entry.value


async def test_up_back_and_up_again_under_load_loses_nothing(cluster: Cluster) -> None:
    build = newer_build(cluster.home)
    sent: list[int] = []
    is_over = asyncio.Event()
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])

        async def load() -> None:
            while not is_over.is_set():
                sent.extend(await write(producer, "t", len(sent), 20))
                await asyncio.sleep(0.02)

        loading = asyncio.create_task(load())
        try:
            await roll(cluster, admin, build)
            assert (await raise_level(cluster, 5)).error_code, "no broker supports level 5"
            assert b"remark" not in (await topic_record(cluster, admin, "before")).replace(b'"remark":""', b"")
            await roll(cluster, admin, None)
            refused = await raise_level(cluster, 4)
            assert refused.results == []
            assert "Brokers 1, 2, 3 do not support level 4" in (refused.error_message or "")
            await roll(cluster, admin, build)
            assert [r.error_code for r in (await raise_level(cluster, 4)).results] == [0]
            await is_at_level(admin, 4)
            assert b'"remark":"level 4"' in await topic_record(cluster, admin, "after")
        finally:
            is_over.set()
            await loading
        assert await asyncio.to_thread(cluster.brokers[3].stop) == 0
        code, _, err = await asyncio.to_thread(cluster.begin(3).ended)
        assert code == 1
        assert "this version supports 1 and 3; upgrade" in err
        cluster.begin(3, environment={**os.environ, "PYTHONPATH": str(build)})
        await asyncio.to_thread(cluster.brokers[3].ready)
        await in_sync(admin, "t", 1, 2, 3)
    assert len(sent) > 100
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent
