"""Answers are lost: the broker has the batch, and the client sends it again."""

from __future__ import annotations

from penstock_e2e.drivers import DRIVERS, clients
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.model import Driver, Partition, ProducerSpec, Record
from penstock_e2e.proxy import FETCH, PRODUCE, losing

COUNT = 400


def _records() -> list[Record]:
    return [Record(f"value-{index}".encode(), partition=0) for index in range(COUNT)]


def _some_produce(api_key: int, number: int) -> bool:
    return api_key == PRODUCE and number in (1, 3, 4, 8)


@clients()
def test_an_idempotent_producer_whose_answers_are_lost_writes_each_record_once_and_in_order(
    client: Driver, setup_admin: ConfluentAdmin, topic: str
) -> None:
    with losing(setup_admin, _some_produce) as proxy:
        through = DRIVERS[client.name](f"127.0.0.1:{proxy.port}")
        through.produce(topic, _records(), ProducerSpec(idempotent=True, batch_size_bytes=500, linger_ms=0))
        assert proxy.lost > 0
    assert client.watermarks(Partition(topic, 0)) == (0, COUNT)
    messages = client.read(Partition(topic, 0), "beginning", COUNT)
    assert [m.value for m in messages] == [r.value for r in _records()]


@clients()
def test_a_producer_that_is_not_idempotent_loses_nothing_but_writes_some_records_twice(
    client: Driver, setup_admin: ConfluentAdmin, topic: str
) -> None:
    """Control of the previous test: without deduplication, the broker writes repeated batches again."""
    with losing(setup_admin, _some_produce) as proxy:
        through = DRIVERS[client.name](f"127.0.0.1:{proxy.port}")
        through.produce(topic, _records(), ProducerSpec(idempotent=False, batch_size_bytes=500, linger_ms=0))
        assert proxy.lost > 0
    _, end = client.watermarks(Partition(topic, 0))
    assert end > COUNT
    messages = client.read(Partition(topic, 0), "beginning", end)
    assert {m.value for m in messages} == {r.value for r in _records()}


@clients()
def test_a_consumer_whose_answers_are_lost_reads_each_record_once(
    client: Driver, setup_admin: ConfluentAdmin, topic: str
) -> None:
    client.produce(topic, _records())
    with losing(setup_admin, lambda api_key, number: api_key == FETCH and number in (1, 2, 4)) as proxy:
        through = DRIVERS[client.name](f"127.0.0.1:{proxy.port}")
        messages = through.read(Partition(topic, 0), "beginning", COUNT)
        assert proxy.lost > 0
    assert [m.offset for m in messages] == list(range(COUNT))
