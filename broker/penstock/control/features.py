"""The feature level of a cluster: what formats its brokers may use in the store and among themselves.

Each broker tells in its registration the highest level that it knows. A cluster keeps the level that it had while its
brokers are replaced by newer ones, one by one and back again if need be; then somebody raises it (`Features.raise_to`,
by the UpdateFeatures request, KIP-584), and from there on only brokers that know it can join. It is never lowered.
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
"""The level's name in requests."""
LOWEST_LEVEL = 1
ATTEMPTS = 10


class Features:
    """`level` is what holds now, as far as the view knows; `known` the highest that this broker can have."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, known: int) -> None:
        self.store, self.view, self.watcher, self.known = store, view, watcher, known

    @property
    def level(self) -> int:
        return self.view.feature_level

    async def raise_to(self, level: int, validate_only: bool = False) -> None:
        """Returns when the view has it. Raises AdminError where a broker does not know the level, or it is lower."""
        for _ in range(ATTEMPTS):
            try:
                if await self._try(level, validate_only):
                    return
            except StoreError as e:
                raise AdminError(ErrorCode.FEATURE_UPDATE_FAILED, f"The store does not answer: {e}.") from e
        raise AdminError(
            ErrorCode.FEATURE_UPDATE_FAILED, "Brokers came and went meanwhile: try again when they are settled."
        )

    async def _try(self, level: int, validate_only: bool) -> bool:
        """False where something changed meanwhile."""
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
    """Raises AdminError where the level cannot be raised to `level`."""
    if level < present:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The level is {present} and is never lowered: state may be in a format that {level} does not know.",
        )
    records = [decode(BrokerRecord, entry.key, entry.value) for entry in brokers]
    behind = [str(r.broker_id) for r in sorted(records, key=lambda r: r.broker_id) if r.feature_level < level]
    if behind:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Brokers {', '.join(behind)} do not know level {level}: upgrade them first, then raise the level.",
        )
