"""An asyncio client for Kafka clusters: producer, consumer and admin client.

This package exports the whole public API; see docs/guide/client.md. Large modules are imported on first use, so that
short-lived processes that need only topics and offsets, such as Spark query planning, start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.client.admin.types import (
    AlterConfig,
    BrokerCertificate,
    BrokerVersion,
    ClientQuota,
    ClusterInfo,
    ConfigEntry,
    CreatedTopic,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMember,
    LogDir,
    NewTopic,
    PartitionLag,
    Reassignment,
    ScramCredentialInfo,
    ShareOffset,
)
from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    BufferFull,
    ClientError,
    Closed,
    CommitFailed,
    ConnectionFailed,
    DamagedBatch,
    DeliveryFailed,
    GroupFenced,
    IllegalState,
    NoBrokerAvailable,
    NoOffset,
    OffsetNotInLog,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    RetriesExhausted,
    TlsFailed,
    TopicDeleted,
    TransactionAbortable,
    UnknownTopic,
    UnsupportedByBroker,
)
from penstock.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from penstock.client.security import Sasl, Security, Tls
from penstock.client.share.types import Acknowledgement, AcknowledgementResult, ShareRecord
from penstock.client.tokens import ClientCredentials, ProvidedTokens, TokenFile
from penstock.client.types import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ConsumerGroupMetadata,
    ConsumerRecord,
    DrainingGroup,
    Fetched,
    FetchSizes,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    RecordMetadata,
    SealedPartitionInfo,
    SkippedBatch,
    TopicInfo,
    TopicPartition,
    TopicPartitions,
    TopicShrink,
    UndeliveredRecords,
)
from penstock.filter import FilterError
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding, AclFilter
from penstock.wire.errors import ErrorCode
from penstock.wire.offset_metadata import NO_POSITION
from penstock.wire.record import Record

if TYPE_CHECKING:
    from penstock.client.accumulator import Delivery
    from penstock.client.admin.admin import Admin
    from penstock.client.admin.configs import ConfigAdminClient
    from penstock.client.admin.groups import GroupAdminClient
    from penstock.client.admin.shrinks import hidden_partitions
    from penstock.client.admin.topics import TopicAdminClient
    from penstock.client.cluster import ClusterConnections
    from penstock.client.connection import ClientConnection
    from penstock.client.consumer import Consumer
    from penstock.client.dead_letter_queue import DeadLetterQueue
    from penstock.client.identity import ClientIdentity, ProducerSession
    from penstock.client.offsets import commit_offsets, fetch_committed
    from penstock.client.produce_dispatcher import ProduceDispatcher
    from penstock.client.producer import Producer
    from penstock.client.range_fetch import RangeFetch
    from penstock.client.rebalancing import RebalanceListener
    from penstock.client.scheduling import cancel_scheduled, deliver_after, deliver_at
    from penstock.client.share.consumer import ShareConsumer
    from penstock.client.topic_queries import OffsetQuery, list_topics
    from penstock.client.transaction_requests import TransactionRequests
    from penstock.wire.messages.produce import PartitionProduceResponse

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_POSITION",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Acknowledgement",
    "AcknowledgementResult",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "AlterConfig",
    "AuthenticationFailed",
    "BrokerCertificate",
    "BrokerError",
    "BrokerVersion",
    "BufferFull",
    "ClientConnection",
    "ClientCredentials",
    "ClientError",
    "ClientIdentity",
    "ClientQuota",
    "Closed",
    "ClusterConnections",
    "ClusterInfo",
    "CommitFailed",
    "ConfigAdminClient",
    "ConfigEntry",
    "ConnectionFailed",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CreatedTopic",
    "DamagedBatch",
    "DeadLetterQueue",
    "Delivery",
    "DeliveryFailed",
    "DrainingGroup",
    "ErrorCode",
    "FetchSizes",
    "Fetched",
    "FilterError",
    "GroupAdminClient",
    "GroupDescription",
    "GroupFenced",
    "GroupLag",
    "GroupListing",
    "GroupMember",
    "IllegalState",
    "LogDir",
    "NewTopic",
    "NoBrokerAvailable",
    "NoOffset",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetNotInLog",
    "OffsetQuery",
    "OffsetRange",
    "PartitionInfo",
    "PartitionLag",
    "PartitionProduceResponse",
    "PatternType",
    "ProduceDispatcher",
    "Producer",
    "ProducerFenced",
    "ProducerSession",
    "ProvidedTokens",
    "RangeFetch",
    "Reassignment",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestTimedOut",
    "ResourceType",
    "RetriesExhausted",
    "Sasl",
    "ScramCredentialInfo",
    "SealedPartitionInfo",
    "Security",
    "ShareConsumer",
    "ShareOffset",
    "ShareRecord",
    "SkippedBatch",
    "Tls",
    "TlsFailed",
    "TokenFile",
    "TopicAdminClient",
    "TopicDeleted",
    "TopicInfo",
    "TopicPartition",
    "TopicPartitions",
    "TopicShrink",
    "TransactionAbortable",
    "TransactionRequests",
    "UndeliveredRecords",
    "UnknownTopic",
    "UnsupportedByBroker",
    "cancel_scheduled",
    "commit_offsets",
    "deliver_after",
    "deliver_at",
    "fetch_committed",
    "hidden_partitions",
    "list_topics",
]

_LAZY_MODULES = {
    "Admin": "admin.admin",
    "ClientConnection": "connection",
    "ClientIdentity": "identity",
    "ClusterConnections": "cluster",
    "ConfigAdminClient": "admin.configs",
    "Consumer": "consumer",
    "DeadLetterQueue": "dead_letter_queue",
    "Delivery": "accumulator",
    "GroupAdminClient": "admin.groups",
    "OffsetQuery": "topic_queries",
    "PartitionProduceResponse": "produce_dispatcher",
    "ProduceDispatcher": "produce_dispatcher",
    "Producer": "producer",
    "ProducerSession": "identity",
    "RangeFetch": "range_fetch",
    "RebalanceListener": "rebalancing",
    "ShareConsumer": "share.consumer",
    "TopicAdminClient": "admin.topics",
    "TransactionRequests": "transaction_requests",
    "cancel_scheduled": "scheduling",
    "commit_offsets": "offsets",
    "deliver_after": "scheduling",
    "deliver_at": "scheduling",
    "fetch_committed": "offsets",
    "hidden_partitions": "admin.shrinks",
    "list_topics": "topic_queries",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)
