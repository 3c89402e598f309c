"""The feature level of a cluster: which formats its brokers use in the store and with each other (KIP-584).

Each broker registers the highest level that it supports. A rolling upgrade or downgrade keeps the cluster's level. An
administrator then raises it (UpdateFeatures), and brokers that do not support it can no longer join. It is never
lowered.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.control.results import AdminError
from penstock.state import keys
from penstock.state.records import BrokerRecord, ClusterRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

FEATURE = "penstock.version"
"""Feature name in requests."""
MIN_LEVEL = 1
ATTEMPTS = 10


class Features:
    """Reads and raises the feature level. `max_level` is the highest level that this broker supports."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, max_level: int) -> None:
        self.store, self.view, self.watcher, self.max_level = store, view, watcher, max_level

    @property
    def level(self) -> int:
        """The current level, as of the view."""
        return self.view.feature_level

    async def raise_to(self, level: int, validate_only: bool = False) -> None:
        """Raise the level and return when the view has it. Raises `AdminError` if a broker does not support it, or for
        a lower level."""
        for _ in range(ATTEMPTS):
            try:
                if await self._try_raise(level, validate_only):
                    return
            except StoreError as e:
                raise AdminError(ErrorCode.FEATURE_UPDATE_FAILED, f"The metadata store is unavailable: {e}.") from e
        raise AdminError(
            ErrorCode.FEATURE_UPDATE_FAILED, "Brokers joined or left meanwhile; try again when the cluster is stable."
        )

    async def _try_raise(self, level: int, validate_only: bool) -> bool:
        """Return False if the cluster changed meanwhile."""
        enrolled = await self.store.get(keys.ENROLLED)
        entry = await self.store.get(keys.CLUSTER)
        assert entry is not None, "a broker runs in a cluster that has a record"
        cluster = decode(ClusterRecord, entry.key, entry.value)
        check_level(level, cluster.feature_level, (await self.store.range(keys.BROKERS)).entries)
        if validate_only or level == cluster.feature_level:
            return True
        result = await self.store.txn(
            [
                Compare.unchanged(entry),
                Compare.absent(keys.ENROLLED) if enrolled is None else Compare.unchanged(enrolled),
            ],
            [PutOp(keys.CLUSTER, encode(replace(cluster, feature_level=level)))],
        )
        if result.succeeded:
            await self.watcher.applied(result.revision)
        return result.succeeded


def check_level(level: int, present: int, brokers: list[StoreEntry]) -> None:
    """Raise `AdminError` if the level cannot be raised to `level`."""
    if level < present:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The level is {present} and cannot be lowered to {level}: stored state may use a newer format.",
        )
    records = [decode(BrokerRecord, entry.key, entry.value) for entry in brokers]
    behind = [str(r.broker_id) for r in sorted(records, key=lambda r: r.broker_id) if r.feature_level < level]
    if behind:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Brokers {', '.join(behind)} do not support level {level}; upgrade them first, then raise the level.",
        )
