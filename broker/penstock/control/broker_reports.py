"""What a broker's registration shows of its settings: its rack, its failure domain, whether it is to be emptied.

Others follow the registration: placement, metadata and the choice of a replica to read from have a change when they
have that. Used by `node`, at the registration and from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from penstock.config.broker import BrokerConfig
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BrokerRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreError

RETRY_S = 1.0

log = get_logger("penstock.control")


class ReportedBroker(NamedTuple):
    """The settings that others see; where no failure domain is set, the rack is one."""

    rack: str | None
    failure_domain: str
    draining: bool

    @classmethod
    def of(cls, config: BrokerConfig) -> ReportedBroker:
        rack = config.broker_rack or None
        return cls(rack, config.broker_failure_domain or rack or "", config.broker_draining)

    def put_into(self, record: BrokerRecord) -> BrokerRecord:
        return msgspec.structs.replace(
            record, rack=self.rack, failure_domain=self.failure_domain, draining=self.draining
        )


class BrokerReports:
    """Keeps a registration up with the settings: one write at a time, the newest last, again while the store is away.

    `show` writes, and raises StoreError. `is_over` tells that there is no registration any more.
    """

    def __init__(
        self,
        config: BrokerConfig,
        show: Callable[[ReportedBroker], Awaitable[None]],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._show, self._is_over = config, show, is_over
        self._shown: ReportedBroker | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, shown: ReportedBroker) -> None:
        """From now on; `shown` is what the broker was registered with."""
        self._shown = shown
        self._config.subscribe(self._look)
        self._look()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _look(self) -> None:
        if self._task is None and ReportedBroker.of(self._config) != self._shown:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="what the registration shows")

    async def _work(self) -> None:
        try:
            while not self._is_over() and (wanted := ReportedBroker.of(self._config)) != self._shown:
                try:
                    await self._show(wanted)
                except StoreError as e:
                    log.warning("what is set for this broker could not be shown to others yet", reason=str(e))
                    await asyncio.sleep(RETRY_S)
                else:
                    self._shown = wanted
        finally:
            self._task = None


async def show_embedded(store: Store, broker_id: int, shown: ReportedBroker) -> None:
    """Shows what is set for the one broker of an embedded store, which is not to be emptied, as there is no other.

    Raises `StoreError`.
    """
    entry = await store.get(keys.broker(broker_id))
    if entry is None:
        return
    value = encode(shown._replace(draining=False).put_into(decode(BrokerRecord, entry.key, entry.value)))
    if value != entry.value:
        await store.txn([Compare.unchanged(entry)], [PutOp(entry.key, value)])
