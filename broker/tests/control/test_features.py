"""The feature level: kept while brokers are upgraded, raised once all support it, never lowered. Kafka's features."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.control.features import Features, FeatureUpdate, check_group_settings, check_settings
from penstock.control.membership import FEATURE_LEVEL, Registration, ensure_cluster
from penstock.control.results import AdminError
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import BrokerRecord, ClusterRecord, decode, encode
from penstock.state.store import PutOp, Store, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher


class Cluster:
    def __init__(self) -> None:
        self.store = EmbeddedStore(":memory:")
        self.view = ClusterView()
        self.watcher = Watcher(self.store, self.view, BrokerConfig())
        self.features = Features(self.store, self.view, self.watcher, 3)

    async def start(self) -> None:
        """Start in a cluster of level 1, as an older version created it."""
        await self.store.txn([], [PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="c")))])
        await self.watcher.start()

    async def join(self, broker_id: int, level: int, store: Store | None = None) -> Registration:
        record = BrokerRecord(
            broker_id=broker_id, incarnation=uuid4(), endpoints=[], directory_id=uuid4(), feature_level=level
        )
        registration = Registration(store or self.store, SystemClock(), record, 60_000)
        await registration.register()
        return registration

    async def stored_level(self) -> int:
        entry = await self.store.get(keys.CLUSTER)
        assert entry is not None
        return decode(ClusterRecord, entry.key, entry.value).feature_level


@pytest.fixture
async def cluster():
    made = Cluster()
    await made.start()
    yield made
    await made.watcher.stop()
    await made.store.close()


async def test_it_is_raised_when_all_brokers_know_it_and_the_view_has_it(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    await cluster.join(2, 3)
    assert cluster.features.level == 1
    await cluster.features.raise_to(2)
    assert cluster.features.level == await cluster.stored_level() == 2


async def test_a_broker_that_is_behind_is_named(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    await cluster.join(7, 1)
    with pytest.raises(AdminError, match="Brokers 7 do not support level 2"):
        await cluster.features.raise_to(2)
    assert await cluster.stored_level() == 1


async def test_to_validate_changes_nothing(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    await cluster.features.raise_to(2, validate_only=True)
    assert await cluster.stored_level() == 1


async def test_it_is_never_lowered(cluster: Cluster) -> None:
    await cluster.join(1, 3)
    await cluster.features.raise_to(3)
    with pytest.raises(AdminError, match="cannot be lowered"):
        await cluster.features.raise_to(2)


async def test_a_broker_that_does_not_know_it_cannot_join(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    await cluster.features.raise_to(2)
    with pytest.raises(StoreError, match="feature level 2, but this version supports 1; upgrade"):
        await cluster.join(2, 1)


class JoinedMeanwhile:
    """A store in which an old broker joins just before the level is written."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.joined = cluster, False

    def __getattr__(self, name: str):
        return getattr(self.cluster.store, name)

    async def txn(self, compares, operations):
        if not self.joined and any(op.key == keys.CLUSTER for op in operations):
            self.joined = True
            await self.cluster.join(2, 1)
        return await self.cluster.store.txn(compares, operations)


async def test_a_broker_that_joins_while_it_is_raised_is_not_overlooked(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    store = JoinedMeanwhile(cluster)
    with pytest.raises(AdminError, match="Brokers 2 do not support level 2"):
        await Features(store, cluster.view, cluster.watcher, 2).raise_to(2)
    assert store.joined
    assert await cluster.stored_level() == 1


async def test_fields_of_a_newer_record_are_passed_over() -> None:
    record = ClusterRecord(cluster_id="c", schema_version=1, feature_level=1)
    newer = msgspec.json.encode({**msgspec.to_builtins(record), "from_the_future": {"a": [1]}})
    assert decode(ClusterRecord, keys.CLUSTER, newer) == record


TRANSACTIONS = "transaction.version"


async def test_a_new_cluster_has_the_highest_levels() -> None:
    store, view = EmbeddedStore(":memory:"), ClusterView()
    await ensure_cluster(store, uuid4)
    watcher = Watcher(store, view, BrokerConfig())
    await watcher.start()
    assert Features(store, view, watcher, FEATURE_LEVEL).finalized == {
        "penstock.version": 3,
        "group.version": 1,
        "share.version": 1,
        "transaction.version": 2,
    }
    await watcher.stop()
    await store.close()


async def test_an_upgraded_cluster_has_transactions_v2_once_an_administrator_raises_both_levels(
    cluster: Cluster,
) -> None:
    await cluster.join(1, 2)
    assert cluster.features.finalized == {"penstock.version": 1, "group.version": 1, "share.version": 1}
    with pytest.raises(AdminError, match=r'requires level 2 of "penstock\.version", which is 1; raise that first'):
        await cluster.features.update([FeatureUpdate(TRANSACTIONS, 2)])
    await cluster.features.raise_to(2)
    assert TRANSACTIONS not in cluster.features.finalized
    await cluster.features.update([FeatureUpdate(TRANSACTIONS, 2)])
    assert cluster.features.finalized[TRANSACTIONS] == 2


async def test_both_levels_can_be_raised_by_one_request_unless_a_broker_is_behind(cluster: Cluster) -> None:
    updates = [FeatureUpdate("penstock.version", 2), FeatureUpdate(TRANSACTIONS, 2)]
    await cluster.join(1, 2)
    older = await cluster.join(2, 1)
    with pytest.raises(AdminError, match="Brokers 2 do not support level 2"):
        await cluster.features.update(updates)
    assert cluster.features.finalized == {"penstock.version": 1, "group.version": 1, "share.version": 1}
    await older.leave()
    await cluster.features.update(updates)
    assert (cluster.features.level, cluster.features.finalized[TRANSACTIONS]) == (2, 2)


async def test_its_epoch_grows_with_each_change_so_that_clients_know_the_newest(cluster: Cluster) -> None:
    await cluster.join(1, 2)
    epochs = [cluster.features.epoch]
    for updates in (
        [FeatureUpdate("penstock.version", 2)],
        [FeatureUpdate(TRANSACTIONS, 2)],
        [FeatureUpdate(TRANSACTIONS, 0, may_lower=True)],
        [FeatureUpdate(TRANSACTIONS, 2)],
    ):
        await cluster.features.update(updates)
        epochs.append(cluster.features.epoch)
    assert epochs == sorted(set(epochs))
    await cluster.features.update([FeatureUpdate(TRANSACTIONS, 2)])
    assert cluster.features.epoch == epochs[-1], "nothing has changed"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delivery.delay.ms", "5"),
        ("delivery.schedule.enable", "true"),
        ("errors.deadletterqueue.group.enable", "true"),
    ],
)
def test_times_of_delivery_and_dead_letters_need_a_cluster_whose_brokers_all_support_them(
    name: str, value: str
) -> None:
    with pytest.raises(InvalidSetting, match=rf"{name} requires level 3 of .* which is 2"):
        check_settings({name: value}, {}, 2)
    check_settings({name: value}, {}, 3)
    check_settings({name: value, "retention.ms": "1"}, {name: value}, 2)
    check_settings({name: {"5": "0", "true": "false"}[value]}, {name: value}, 2)


def test_a_group_names_a_dead_letter_topic_only_if_all_brokers_can_read_its_state() -> None:
    name = "errors.deadletterqueue.topic.name"
    with pytest.raises(InvalidSetting, match=rf"{name} requires level 3 of .* which is 2: older brokers do not"):
        check_group_settings({name: "dlq.a"}, {}, 2)
    with pytest.raises(InvalidSetting, match="requires level 3"):
        check_group_settings({name: "dlq.b"}, {name: "dlq.a"}, 2)
    check_group_settings({name: "dlq.a"}, {}, 3)
    check_group_settings({name: "dlq.a", "share.order.by.key": "true"}, {name: "dlq.a"}, 2)
    check_group_settings({name: ""}, {name: "dlq.a"}, 2)
    check_group_settings({"share.order.by.key": "true"}, {}, 2)
