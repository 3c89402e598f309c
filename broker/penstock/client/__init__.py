"""An asyncio client for every broker that speaks the Kafka protocol: producer, consumer, admin.

Everything public is named here; docs/guide/client.md tells how to use it. The large parts are loaded when they are
first asked for: who wants topics and offsets alone, as a process that plans a Spark query and lives for a moment,
does not wait for them.
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
    RecordTooLarge,
    RequestTimedOut,
    TlsFailed,
    UnknownTopic,
    UnsupportedByBroker,
)
from penstock.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from penstock.client.security import Sasl, Security, Tls
from penstock.client.types import (
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
    from penstock.client.consumer import Consumer
    from penstock.client.producer import Producer
    from penstock.client.rebalancing import RebalanceListener

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
    "ClusterInfo",
    "CommitFailed",
    "ConfigEntry",
    "ConnectionFailed",
    "Consumer",
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
    "UnknownTopic",
    "UnsupportedByBroker",
]

_LATER = {
    "Admin": "admin.admin",
    "Consumer": "consumer",
    "Delivery": "accumulator",
    "Producer": "producer",
    "RebalanceListener": "rebalancing",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
