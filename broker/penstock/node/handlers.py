"""Creates the handlers of all requests from a broker's services. Called once by `node.broker`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from penstock.api.acls import AclsApi
from penstock.api.authorization.access import DataAccess
from penstock.api.authorization.enforcement import Enforcement
from penstock.api.broker_state import BrokerState, ListenerCertificate
from penstock.api.client_quotas import ClientQuotasApi
from penstock.api.cluster import ClusterApi
from penstock.api.configs import ConfigsApi
from penstock.api.consumer_groups import ConsumerGroupsApi
from penstock.api.disabled_features import guard_route
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
from penstock.api.pending_elections import PendingElections
from penstock.api.produce import ProduceApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.quorum import QuorumApi
from penstock.api.reassignments import ReassignmentsApi
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.api.routes import Route
from penstock.api.sasl import UnexpectedSaslApi
from penstock.api.scram_credentials import ScramCredentialsApi
from penstock.api.share.acknowledge import ShareAcknowledgeApi
from penstock.api.share.acks import ShareAcks
from penstock.api.share.fetch import ShareFetchApi
from penstock.api.share.groups import ShareGroupsApi
from penstock.api.share.members import ShareMembers
from penstock.api.share.offsets import ShareOffsetsApi
from penstock.api.share.states import ShareStatesApi
from penstock.api.topics import TopicsApi
from penstock.api.transaction_parts import TransactionPartsApi
from penstock.api.transactions import TransactionsApi
from penstock.api.versions import ApiVersionsApi
from penstock.config.broker import BrokerConfig
from penstock.control.acl_admin import AclService
from penstock.control.client_quotas import ClientQuotaService
from penstock.control.config_admin import ConfigService
from penstock.control.controller.reassignment_requests import ReassignmentRequests
from penstock.control.features import Features
from penstock.control.membership import FEATURE_LEVEL
from penstock.control.scram_admin import ScramAdmin
from penstock.control.topic_admin import TopicService
from penstock.group.coordinator import GroupCoordinator
from penstock.log.log_dir import LogDirectory
from penstock.node.latest_offsets import LatestOffsets
from penstock.node.partition_data import LogDirSizes
from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.stats import RequestStats
from penstock.security.audit import AuditLog
from penstock.security.authorizer import Authorizer
from penstock.security.quotas.client_quotas import ClientQuotas
from penstock.share.coordinator import ShareStates
from penstock.share.leaders import ShareLeaders
from penstock.share.sessions import ShareSessions
from penstock.shrink.leaders import TopicShrinks
from penstock.state.store import Store
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService


class ApiHandler(Protocol):
    """A module of `api`: handlers for a family of requests."""

    def routes(self) -> list[Route]:
        """Return the routes of its requests."""


@dataclass
class BrokerServices:
    """The services that handlers call."""

    store: Store
    view: ClusterView
    watcher: Watcher
    clock: Clock
    random: Random
    config: BrokerConfig
    stats: RequestStats
    log_dir: LogDirectory
    replicas: ReplicaManager
    leaderships: Leaderships
    topics: TopicService
    groups: GroupCoordinator
    share_states: ShareStates
    latest_offsets: LatestOffsets
    share: ShareLeaders
    ids: ProducerIds
    transactions: TransactionService
    shrinks: TopicShrinks
    quotas: ClientQuotas
    authorizer: Authorizer
    audit: AuditLog
    certificates: Sequence[ListenerCertificate]
    elections: PendingElections


def make_dispatcher(services: BrokerServices, now_s: Callable[[], float]) -> Dispatcher:
    """Return the dispatcher of all requests; `now_s` is the event loop's clock."""
    config, replicas, stats, authorizer = services.config, services.replicas, services.stats, services.authorizer
    features = Features(services.store, services.view, services.watcher, FEATURE_LEVEL)
    sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, now_s, services.random)
    followers = ReplicaFetchApi(replicas, config.replica_fetch_response_max_bytes, services.random)
    limits = FetchLimits(config.fetch_max_bytes)
    access = enforcement = None
    if authorizer.is_enabled:
        access = DataAccess(authorizer, services.view, services.audit)
        enforcement = Enforcement(authorizer, services.view, config, services.audit)
    apis = [*make_apis(services), *make_share_apis(services, limits, access), FeaturesApi(features)]
    routes = [route for api in apis for route in api.routes()]
    for route in routes:
        guard_route(route, features)
    fetch = FetchApi(replicas, sessions, limits, stats, followers, services.leaderships, access)
    produce = ProduceApi(replicas, stats, services.transactions.verifier, services.leaderships, access)
    versions = ApiVersionsApi(routes, features)
    return Dispatcher(produce, fetch, versions, routes, stats, services.quotas, enforcement)


def make_share_apis(services: BrokerServices, limits: FetchLimits, access: DataAccess | None) -> list[ApiHandler]:
    """Return the handlers that give records to share groups; they share the sessions of members."""
    members = ShareMembers(ShareSessions(services.config.group_share_max_share_sessions), services.share)
    acks = ShareAcks(services.replicas, services.share, access)
    return [
        ShareFetchApi(services.replicas, members, acks, limits, services.stats, access),
        ShareAcknowledgeApi(members, acks),
    ]


def make_apis(services: BrokerServices) -> list[ApiHandler]:
    """Return the handlers that need no state of their own."""
    store, view, watcher, config = services.store, services.view, services.watcher, services.config
    groups, txns = services.groups, services.transactions
    return [
        MetadataApi(view, services.topics, config, services.elections),
        TopicsApi(view, services.topics, config),
        ConfigsApi(
            view,
            ConfigService(store, view, watcher, config, services.clock),
            config,
            BrokerState(view, config, services.certificates),
        ),
        ClientQuotasApi(ClientQuotaService(store, view, watcher)),
        ClusterApi(view),
        AclsApi(view, AclService(store, view, watcher), services.authorizer),
        ScramCredentialsApi(ScramAdmin(store, view, watcher)),
        UnexpectedSaslApi(),
        ReassignmentsApi(view, ReassignmentRequests(store, view, watcher, services.clock, config)),
        QuorumApi(store, view, services.clock),
        LogDirsApi(view, LogDirSizes(services.log_dir)),
        LogQueriesApi(services.replicas),
        GroupsApi(groups, view, txns.coordinator),
        GroupAdminApi(groups, view),
        ConsumerGroupsApi(groups, view, services.authorizer),
        ShareGroupsApi(groups, view),
        ShareStatesApi(services.share_states),
        ShareOffsetsApi(groups, services.share_states, view, services.latest_offsets),
        OffsetsApi(groups, view),
        ProducerIdsApi(services.ids, txns.coordinator),
        TransactionsApi(txns.coordinator, view, services.clock),
        TransactionPartsApi(view, txns.markers, groups, txns.offsets, txns.verifier),
    ]
