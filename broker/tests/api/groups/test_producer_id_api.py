"""InitProducerId at every version, through the codec."""

from __future__ import annotations

import pytest

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import init_producer_id as ip

E = ErrorCode


@pytest.mark.parametrize("version", range(6))
async def test_each_producer_gets_an_id_of_its_own(broker, version):
    given = [await broker.call(version, ip.InitProducerIdRequest()) for _ in range(3)]
    assert [(g.error_code, g.producer_epoch) for g in given] == [(0, 0)] * 3
    assert len({g.producer_id for g in given}) == 3


@pytest.mark.parametrize("version", range(3, 6))
async def test_a_producer_that_has_an_id_gets_another(broker, version):
    request = ip.InitProducerIdRequest(producer_id=5, producer_epoch=3)
    first, second = [await broker.call(version, request) for _ in range(2)]
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id
    for half in ({"producer_id": 5}, {"producer_epoch": 3}):
        refused = await broker.call(version, ip.InitProducerIdRequest(**half))
        assert (refused.error_code, refused.producer_id) == (E.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(6))
async def test_a_transactional_producer_keeps_its_id_and_gets_the_next_epoch(broker, version):
    request = ip.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
    first, second = [await broker.call(version, request) for _ in range(2)]
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (0, first.producer_id, 1)


async def test_where_the_store_is_down_a_producer_is_told_to_come_back(broker):
    await broker.groups._store.close()
    response = await broker.call(4, ip.InitProducerIdRequest())
    assert response.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
