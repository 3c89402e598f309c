"""A broker with transactions, in the test's own process: a whole node, to which the handlers are added."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.api.dispatch import Dispatcher
from penstock.api.groups import GroupsApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.transaction_parts import TransactionPartsApi
from penstock.api.transactions import TransactionsApi
from penstock.api.versions import ApiVersionsApi
from penstock.config.options import UpOptions
from penstock.node import Node
from penstock.runtime.clock import SystemClock
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import Transactions

T = TypeVar("T")
DEADLINE_S = 30.0


class TxnNode(Node):
    """What `node` does once it has transactions."""

    transactions: Transactions

    def dispatcher(self, *parts: Any) -> Dispatcher:
        store, _, _, replicas, _, groups = parts
        made = super().dispatcher(*parts)
        ids = ProducerIds(store)
        self.transactions = txns = Transactions(store, self.view, self.clock, self.config, ids, replicas, groups)
        self.cleanup.push_async_callback(txns.close)
        apis = [
            TransactionsApi(txns.coordinator, self.view, self.clock),
            TransactionPartsApi(self.view, txns.markers, groups, txns.offsets, txns.verifier),
            ProducerIdsApi(ids, txns.coordinator),
            GroupsApi(groups, self.view, txns.coordinator),
        ]
        for api in apis:
            for route in api.routes():
                made.routes[route.request.KEY] = route
        made.produce.verifier = txns.verifier
        made.versions = ApiVersionsApi(made.routes.values())
        return made


@contextlib.asynccontextmanager
async def running(home: Path, **settings: str) -> AsyncIterator[tuple[TxnNode, str]]:
    """A started node and its address."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given.setdefault("group.initial.rebalance.delay.ms", "0")
    options = UpOptions(data_dir=str(home), host="127.0.0.1", port=0, http_port=None, settings=given)
    node = TxnNode(options, dict(os.environ), SystemClock())
    listeners, _ = await node.start()
    await node.transactions.start()
    try:
        yield node, f"127.0.0.1:{listeners[0].port}"
    finally:
        await node.stop()


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Clients block."""
    return await asyncio.wait_for(asyncio.to_thread(work, *arguments), DEADLINE_S)
