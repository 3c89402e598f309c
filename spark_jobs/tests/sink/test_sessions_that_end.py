"""Brokers that end sessions (`connections.max.reauth.ms`, KIP-368): a longer task switches to a new connection before a
broker closes the old one with its requests in flight."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from client_doubles.guarded import GuardedBroker

from penstock.client import Sasl, Security
from penstock.client.cluster import ClusterConnections
from penstock_spark.encode.batches import encode
from penstock_spark.encode.ports import EncodableRows, ProducerId
from penstock_spark.sink.batch_sender import BatchSender, SenderSettings
from penstock_spark.sink.partition_lanes import EncodedBytesBudget

pytestmark = pytest.mark.integration

LIMIT_S = 60.0
NOBODY = ProducerId(-1, -1, False)


@pytest.mark.parametrize("in_flight", [1, 5])
async def test_a_session_that_ends_soon_is_replaced_and_loses_nothing(in_flight: int) -> None:
    async with GuardedBroker(mechanisms=("PLAIN",), lifetime_ms=300) as broker, asyncio.timeout(LIMIT_S):
        cluster = ClusterConnections(broker.address, security=Security(sasl=Sasl("PLAIN", "alice", "secret")))
        await cluster.start()
        await cluster.topic("t")
        budget = EncodedBytesBudget(1 << 20)
        sending = BatchSender(cluster, SenderSettings(None, -1, 1000, in_flight, 30_000, 30_000), budget, None)
        sent = 0
        while broker.authentications < 5:
            value = pa.array([b"%d" % sent], pa.binary())
            (batch,) = encode(EncodableRows(pa.nulls(1, pa.binary()), value, None, np.array([1])), 0, 1000, NOBODY, -1)
            budget.acquire(len(batch.data))
            sending.put(("t", 0), batch)
            sent += 1
            await asyncio.sleep(0.01)
        await sending.finish()
        await sending.close()
        await cluster.close()
        assert broker.log[0] == [b"%d" % number for number in range(sent)]
