"""An asyncio client for Kafka clusters: producer, consumer and admin client.

This package exports the whole public API; see docs/guide/client.md. Large modules are imported on first use, so that
short-lived processes that need only topics and offsets, such as Spark query planning, start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.client.admin.types import (
    AlterConfig,
    BrokerVersion,
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
)
from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    BufferFull,
    ClientError,
    Closed,
    CommitFailed,
    ConnectionFailed,
    DeliveryFailed,
    GroupFenced,
    IllegalState,
    NoBrokerAvailable,
    NoOffset,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    TlsFailed,
    TransactionAbortable,
    UnknownTopic,
    UnsupportedByBroker,
)
from penstock.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from penstock.client.security import Sasl, Security, Tls
from penstock.client.types import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    RecordMetadata,
    SkippedBatch,
    TopicInfo,
    TopicPartition,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record

if TYPE_CHECKING:
    from penstock.client.accumulator import Delivery
    from penstock.client.admin.admin import Admin
    from penstock.client.cluster import ClusterConnections
    from penstock.client.consumer import Consumer
    from penstock.client.identity import ProducerSession
    from penstock.client.producer import Producer
    from penstock.client.rebalancing import RebalanceListener
    from penstock.client.transaction_requests import TransactionRequests

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "AlterConfig",
    "AuthenticationFailed",
    "BrokerError",
    "BrokerVersion",
    "BufferFull",
    "ClientError",
    "Closed",
    "ClusterConnections",
    "ClusterInfo",
    "CommitFailed",
    "ConfigEntry",
    "ConnectionFailed",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CreatedTopic",
    "Delivery",
    "DeliveryFailed",
    "ErrorCode",
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
    "PartitionInfo",
    "PartitionLag",
    "Producer",
    "ProducerFenced",
    "ProducerSession",
    "Reassignment",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestTimedOut",
    "Sasl",
    "Security",
    "SkippedBatch",
    "Tls",
    "TlsFailed",
    "TopicInfo",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionRequests",
    "UnknownTopic",
    "UnsupportedByBroker",
]

_LAZY_MODULES = {
    "Admin": "admin.admin",
    "ClusterConnections": "cluster",
    "Consumer": "consumer",
    "Delivery": "accumulator",
    "Producer": "producer",
    "ProducerSession": "identity",
    "RebalanceListener": "rebalancing",
    "TransactionRequests": "transaction_requests",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)
