"""What differs between a single broker and one of a cluster: both are a `BrokerComposition`, and no other package needs
to know which one runs. Used by `broker`."""

from __future__ import annotations

import contextlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from penstock.api.leaderships import Leaderships
from penstock.config.broker import BrokerConfig
from penstock.config.listener_sasl import BrokerCredentials
from penstock.config.listeners import ListenerAddress
from penstock.control.broker_availability import AvailabilitySource
from penstock.group.offset_loading import OffsetLoaderFactory
from penstock.group.ownership import ShardOwnership
from penstock.log.log_dir import LogDirectory
from penstock.node.environment import ClosableStore, NodeEnvironment
from penstock.node.handlers import BrokerServices
from penstock.node.remote_lag import EndsChannel
from penstock.replica.fetcher import FetchChannel
from penstock.replica.manager import ReplicaManager
from penstock.replica.membership import BrokerMembership
from penstock.server.listener import Server
from penstock.share.dead_letter_logs import LetterChannel
from penstock.share.routing import ShareStateChannel
from penstock.state.store import Store
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher
from penstock.txn.router import MarkerChannel
from penstock.txn.verification import VerificationChannel


class PeerChannels(MarkerChannel, VerificationChannel, EndsChannel, ShareStateChannel, LetterChannel, Protocol):
    """Connections to the other brokers. All calls raise OSError if a broker cannot be reached."""

    def fetch_from(self, broker_id: int, on_lost: Callable[[], None]) -> FetchChannel:
        """Return a channel for replica fetches from a broker; `on_lost` is called when a connection of it breaks."""

    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class CompositionContext:
    """What a composition is made of.

    `open_store` opens another client of the store. `listener` is the name of the brokers' listener for each other,
    `peer_tls` returns the TLS context of these connections, and `credentials` how they log in there. `on_lost` is
    called with the reason when the cluster has ended the membership. Closes are scheduled on `cleanup`.
    """

    own_store: ClosableStore
    open_store: Callable[[], ClosableStore]
    view: ClusterView
    config: BrokerConfig
    log_dir: LogDirectory
    environment: NodeEnvironment
    listener: str
    peer_tls: Callable[[], ssl.SSLContext | None]
    credentials: Callable[[], BrokerCredentials | None]
    on_lost: Callable[[str], None]
    cleanup: contextlib.AsyncExitStack


class BrokerComposition(ABC):
    """The parts of a broker that depend on whether there are others. The methods are called in this order; those with
    an implementation here do what suits a single broker."""

    store: Store
    """The store that all writers use."""
    watcher: Watcher
    member: BrokerMembership
    peers: PeerChannels
    ownership: ShardOwnership
    make_loader: OffsetLoaderFactory
    brokers: AvailabilitySource
    make_leaderships: Callable[[Store, ReplicaManager], Leaderships]

    async def open(self) -> None:
        """Return when the store can be relied on. Raises `StoreError`."""

    async def on_view_loaded(self) -> None:
        """Prepare the metadata for this start, before the logs are recovered. Raises `StoreError`."""

    def retained(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Return the partitions whose data must not be quarantined; `hosted` are those that the view has."""
        return hosted

    async def on_recovered(self) -> None:
        """Handle the end of the logs' recovery: data outside `retained` has been quarantined durably."""

    @abstractmethod
    async def listen(
        self,
        server: Server,
        listeners: Sequence[ListenerAddress],
        services: BrokerServices,
        publish: Callable[[list[ListenerAddress]], list[BrokerEndpoint]],
    ) -> list[ListenerAddress]:
        """Open the listeners, register with what `publish` returns for them, and start the background work.

        Returns the bound addresses.
        """

    def frozen_reason(self) -> str | None:
        """Return why this broker is frozen because of a restored store; None if it is not."""
        return None

    def not_ready(self) -> str | None:
        """Return why a registered broker is not ready for clients; None if it is."""
        return None

    def has_confirmed_acls(self) -> bool:
        """Return whether the view surely has the changes of ACLs that are older than the broker's lease."""
        return True

    async def leave(self) -> None:
        """End the registration, before the listeners close."""

    async def close(self) -> None:
        """Stop the background work."""
