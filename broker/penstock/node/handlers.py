"""The handlers of all requests, made from a broker's parts. Called once by `broker`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.api.cluster import ClusterApi
from penstock.api.configs import ConfigsApi
from penstock.api.dispatch import Dispatcher
from penstock.api.features import FeaturesApi
from penstock.api.fetch import FetchApi, FetchLimits
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.group_admin import GroupAdminApi
from penstock.api.groups import GroupsApi
from penstock.api.leaderships import Leaderships
from penstock.api.log_dirs import LogDirsApi
from penstock.api.log_queries import LogQueriesApi
from penstock.api.metadata import MetadataApi
from penstock.api.offsets import OffsetsApi
from penstock.api.produce import ProduceApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.quorum import QuorumApi
from penstock.api.reassignments import ReassignmentsApi
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.api.routes import Route
from penstock.api.topics import TopicsApi
from penstock.api.transaction_parts import TransactionPartsApi
from penstock.api.transactions import TransactionsApi
from penstock.api.versions import ApiVersionsApi
from penstock.config.broker import BrokerConfig
from penstock.control.config_admin import ConfigService
from penstock.control.controller.reassignment_requests import ReassignmentRequests
from penstock.control.features import Features
from penstock.control.membership import FEATURE_LEVEL
from penstock.control.topic_admin import TopicService
from penstock.group.coordinator import GroupCoordinator
from penstock.log.log_dir import LogDirectory
from penstock.node.parts import DirSizes
from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.stats import RequestStats
from penstock.state.store import Store
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService


class ApiHandler(Protocol):
    """A module of `api`: handlers for a family of requests."""

    def routes(self) -> list[Route]: ...


@dataclass
class BrokerServices:
    """What handlers call."""

    store: Store
    view: ClusterView
    watcher: Watcher
    clock: Clock
    config: BrokerConfig
    stats: RequestStats
    log_dir: LogDirectory
    replicas: ReplicaManager
    topics: TopicService
    groups: GroupCoordinator
    ids: ProducerIds
    transactions: TransactionService


def make_dispatcher(parts: BrokerServices, now_s: Callable[[], float]) -> Dispatcher:
    """`now_s` is the event loop's clock."""
    config, replicas, stats = parts.config, parts.replicas, parts.stats
    features = Features(parts.store, parts.view, parts.watcher, FEATURE_LEVEL)
    apis = [*make_apis(parts), FeaturesApi(features)]
    routes = [route for api in apis for route in api.routes()]
    sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, now_s)
    followers = leaderships = None
    if replicas.membership is not None:
        followers = ReplicaFetchApi(replicas, config.replica_fetch_response_max_bytes)
        leaderships = Leaderships(parts.store, replicas)
    fetch = FetchApi(replicas, sessions, FetchLimits(config.fetch_max_bytes), stats, followers, leaderships)
    produce = ProduceApi(replicas, stats, parts.transactions.verifier, leaderships)
    return Dispatcher(produce, fetch, ApiVersionsApi(routes, features), routes, stats)


def make_apis(parts: BrokerServices) -> list[ApiHandler]:
    store, view, watcher, config = parts.store, parts.view, parts.watcher, parts.config
    groups, txns = parts.groups, parts.transactions
    return [
        MetadataApi(view, parts.topics, config),
        TopicsApi(view, parts.topics, config),
        ConfigsApi(view, ConfigService(store, view, watcher, config, parts.clock), config),
        ClusterApi(view),
        ReassignmentsApi(view, ReassignmentRequests(store, view, watcher, parts.clock, config)),
        QuorumApi(store, view, parts.clock),
        LogDirsApi(view, DirSizes(parts.log_dir)),
        LogQueriesApi(parts.replicas),
        GroupsApi(groups, view, txns.coordinator),
        GroupAdminApi(groups, view),
        OffsetsApi(groups, view),
        ProducerIdsApi(parts.ids, txns.coordinator),
        TransactionsApi(txns.coordinator, view, parts.clock),
        TransactionPartsApi(view, txns.markers, groups, txns.offsets, txns.verifier),
    ]
