"""Keeps a broker's registration up to date with its settings: rack, failure domain, and whether it drains.

Placement, metadata and the choice of a replica to read from follow the registration. Called by `node` at registration
and whenever a setting changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from penstock.config.broker import BrokerConfig
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import BrokerRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreError

RETRY_S = 1.0

log = get_logger("penstock.control")


class ReportedSettings(NamedTuple):
    """The settings in the registration. Without a failure domain, the rack is the failure domain."""

    rack: str | None
    failure_domain: str
    draining: bool

    @classmethod
    def from_config(cls, config: BrokerConfig) -> ReportedSettings:
        """Return the settings that `config` has now."""
        rack = config.broker_rack or None
        return cls(rack, config.broker_failure_domain or rack or "", config.broker_draining)

    def apply_to(self, record: BrokerRecord) -> BrokerRecord:
        """Return the registration with these settings."""
        return msgspec.structs.replace(
            record, rack=self.rack, failure_domain=self.failure_domain, draining=self.draining
        )


class BrokerReports:
    """Writes changed settings to the registration, one write at a time, and retries while the store is unavailable.

    `report` writes and raises `StoreError`. `is_over` returns whether the registration has ended.
    """

    def __init__(
        self,
        config: BrokerConfig,
        report: Callable[[ReportedSettings], Awaitable[None]],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._report, self._is_over = config, report, is_over
        self._last_reported: ReportedSettings | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, reported: ReportedSettings) -> None:
        """Start following the settings; `reported` is what the broker was registered with."""
        self._last_reported = reported
        self._config.subscribe(self._check_settings)
        self._check_settings()

    async def close(self) -> None:
        """Stop following the settings."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _check_settings(self) -> None:
        if self._task is None and ReportedSettings.from_config(self._config) != self._last_reported:
            self._task = spawn(self._work(), "broker-reports")

    async def _work(self) -> None:
        try:
            while (
                not self._is_over() and (current := ReportedSettings.from_config(self._config)) != self._last_reported
            ):
                try:
                    await self._report(current)
                except StoreError as e:
                    log.warning("broker settings not written to the registration yet; retrying", reason=str(e))
                    await asyncio.sleep(RETRY_S)
                else:
                    self._last_reported = current
        finally:
            self._task = None


async def report_embedded(store: Store, broker_id: int, reported: ReportedSettings) -> None:
    """Write the settings of the only broker of an embedded store, which cannot drain. Raises `StoreError`."""
    entry = await store.get(keys.broker(broker_id))
    if entry is None:
        return
    value = encode(reported._replace(draining=False).apply_to(decode(BrokerRecord, entry.key, entry.value)))
    if value != entry.value:
        await store.txn([Compare.unchanged(entry)], [PutOp(entry.key, value)])
