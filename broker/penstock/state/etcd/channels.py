"""Connections to the members of an etcd cluster: one gRPC channel per endpoint, and the current endpoint.

Used by `calls`, `watch` and `maintenance`. Calls are sent only on a connected channel, so a failure to connect means
that nothing was sent, and even a write can go to another endpoint. (gRPC reports both as UNAVAILABLE.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from penstock.state.etcd.errors import ForeignCluster, NoAnswer
from penstock.state.etcd.options import EndpointAddress, EtcdOptions, InvalidEtcdOption
from penstock.state.store import StoreUnavailable

MAX_RECEIVE_BYTES = 16 << 20
"""Maximum message size from etcd; paged ranges and fragmented watches stay far below."""
MAX_SEND_BYTES = 16 << 20
PROBE_KEY = b"\x00"
"""Unused key that a probe reads."""

Metadata = tuple[tuple[str, str], ...]

READY = grpc.ChannelConnectivity.READY


def is_task_cancelled() -> bool:
    """Return whether this task is being cancelled: gRPC also raises CancelledError if a channel is closed during a
    call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def wait_shared(task: asyncio.Task[None]) -> None:
    """Wait for a task that others wait for too; cancelling one waiter does not cancel it. Raises `NoAnswer`."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if is_task_cancelled():
            raise
        raise NoAnswer("the store is being closed") from None


class EtcdClusterIdentity:
    """The id of the etcd cluster, from the first endpoint that responds."""

    def __init__(self) -> None:
        self._cluster_id = 0
        self._url = ""
        self.on_connect: list[Callable[[], None]] = []
        """Called when a connection was made, before its first response."""

    @property
    def cluster_id(self) -> str:
        """In hexadecimal; "" before an endpoint has responded."""
        return f"{self._cluster_id:x}" if self._cluster_id else ""

    def connected(self) -> None:
        """Call the `on_connect` listeners."""
        for listener in self.on_connect:
            listener()

    def check(self, cluster_id: int, url: str) -> None:
        """Raise `ForeignCluster` for another cluster than before: a restored etcd, or a wrong endpoint."""
        if not self._cluster_id:
            self._cluster_id, self._url = cluster_id, url
        elif cluster_id and cluster_id != self._cluster_id:
            raise ForeignCluster(
                f'etcd at "{url}" is of cluster {cluster_id:x}, but "{self._url}" is of {self._cluster_id:x}; use'
                " endpoints of one etcd cluster; if etcd was restored from a backup, recover the cluster first"
            )


class EtcdEndpoint:
    """One member's address, its channel (created on first use, replaced when broken) and its stubs."""

    def __init__(self, address: EndpointAddress, options: EtcdOptions, identity: EtcdClusterIdentity) -> None:
        self.address, self.url = address, address.url
        self._options, self._identity = options, identity
        self._channel: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self.kv: Any = None
        self.lease: Any = None
        self.watch: Any = None
        self.auth: Any = None
        self.maintenance: Any = None
        self.cluster: Any = None

    def is_ready(self) -> bool:
        """Return whether the channel is connected."""
        return self._channel is not None and self._channel.get_state() is READY

    async def ready(self) -> None:
        """Return when the channel is connected. Raises `NoAnswer`, `ForeignCluster`."""
        if self.is_ready():
            return
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name=f"etcd {self.url}")
            self._connecting.add_done_callback(self._connected)
        await wait_shared(self._connecting)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # the waiters get it, if any are left

    async def _connect(self) -> None:
        """Send a local read, which makes gRPC connect and report why it cannot."""
        if self._channel is None:
            self._open()
        self._identity.connected()
        request = rpc_pb2.RangeRequest(key=PROBE_KEY, serializable=True, count_only=True)
        timeout_s = self._options.connect_timeout_s
        detail = f"no response within {timeout_s} s"
        try:
            # The call's own deadline does not cover name resolution.
            async with asyncio.timeout(timeout_s + 1.0):
                response = await self.kv.Range(request, timeout=timeout_s)
            self._identity.check(response.header.cluster_id, self.url)
            return
        except grpc.aio.AioRpcError as e:
            if self.is_ready() and e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return  # etcd refused it (without a token), so it is running
            if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                detail = e.details() or e.code().name
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            detail = "the channel was closed"
        await self.discard()
        raise NoAnswer(detail)

    def _open(self) -> None:
        keepalive_ms = int(self._options.keepalive_s * 1000)
        settings = [
            ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
            ("grpc.max_send_message_length", MAX_SEND_BYTES),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
            ("grpc.http2.ping_timeout_ms", keepalive_ms // 2),  # one minute by default
            ("grpc.http2.max_pings_without_data", 0),
            # Broken channels are replaced, so their backoff must be short.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self.address.tls:
            self._channel = grpc.aio.secure_channel(self.address.target, credentials(self._options), settings)
        else:
            self._channel = grpc.aio.insecure_channel(self.address.target, settings)
        self.kv = rpc_pb2_grpc.KVStub(self._channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self._channel)
        self.watch = rpc_pb2_grpc.WatchStub(self._channel)
        self.auth = rpc_pb2_grpc.AuthStub(self._channel)
        self.maintenance = rpc_pb2_grpc.MaintenanceStub(self._channel)
        self.cluster = rpc_pb2_grpc.ClusterStub(self._channel)

    async def discard(self, grace_s: float | None = None) -> None:
        """Close the channel; the next call creates a new one with the current certificates."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(grace_s)

    def check_identity(self, cluster_id: int) -> None:
        """Raise `ForeignCluster` for another cluster than before."""
        self._identity.check(cluster_id, self.url)

    async def close(self, grace_s: float) -> None:
        """Close the channel; calls under way have `grace_s` seconds."""
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        await self.discard(grace_s)


def credentials(options: EtcdOptions) -> Any:
    """Read the TLS files. Raises `InvalidEtcdOption` if one cannot be read."""

    def read(name: str) -> bytes | None:
        path = getattr(options, name)
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as e:
            raise InvalidEtcdOption(f"cannot read etcd's {name}: {e}") from None

    return grpc.ssl_channel_credentials(read("ca_file"), read("key_file"), read("cert_file"))


class Endpoints:
    """All configured members. One is used until it fails, then the next: reads and watches stay on one history."""

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        identity = self.identity = EtcdClusterIdentity()
        self._all: Sequence[EtcdEndpoint] = [
            EtcdEndpoint(address, options, identity) for address in options.addresses()
        ]
        self._current = 0
        self.is_closed = False
        self.failovers = 0
        """Number of failovers, for metrics."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Any:
        return iter(self._all)

    @property
    def current(self) -> EtcdEndpoint:
        """The endpoint in use."""
        return self._all[self._current]

    def by_url(self, url: str) -> EtcdEndpoint:
        """Return the endpoint of a URL. Raises ValueError."""
        for endpoint in self._all:
            if endpoint.url == url.rstrip("/"):
                return endpoint
        raise ValueError(f'"{url}" is not one of the etcd endpoints {", ".join(e.url for e in self._all)}')

    def fail_over(self, endpoint: EtcdEndpoint) -> None:
        """Use the next endpoint, unless another call has switched already."""
        if endpoint is self.current and len(self._all) > 1:
            self._current = (self._current + 1) % len(self._all)
            self.failovers += 1

    def check_open(self) -> None:
        """Raise `StoreUnavailable` if the store is closed."""
        if self.is_closed:
            raise StoreUnavailable("the store is closed")

    def names(self) -> str:
        """Return the URLs, for messages."""
        return ", ".join(endpoint.url for endpoint in self._all)

    async def close(self, grace_s: float) -> None:
        """Close all channels."""
        self.is_closed = True
        await asyncio.gather(*[endpoint.close(grace_s) for endpoint in self._all])
