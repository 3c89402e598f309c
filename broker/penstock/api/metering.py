"""Serves the requests of clients with quotas (KIP-219). Used by `dispatch`, only while there are quotas.

A request is charged when it arrives, before it is served. Its response reports the throttle time; the connection is not
read for that time, while its responses are still sent. Brokers have no quotas.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.exchange import FrameHandler, PeerConnection, PeerInfo
from penstock.security.quotas.client_quotas import ClientQuotas, ClientUsage
from penstock.security.quotas.request_meter import RequestMeter
from penstock.wire.apis import ApiKey
from penstock.wire.frame import FIXED, FIXED_SIZE, MAX_CLIENT_ID_BYTES

BROKER_CLIENT_IDS = (b"penstock-broker-", b"penstock-fetch-", b"penstock-metrics-")
"""Starts of the client ids of brokers (`node.peers`). Others could claim them, so the rights count as well."""


class RequestMetering:
    """Serves requests of clients with quotas. `timer_s` measures the time of handlers; `may_be_broker` returns whether
    a client has the rights of a broker."""

    def __init__(
        self, quotas: ClientQuotas, timer_s: Callable[[], float], may_be_broker: Callable[[PeerInfo], bool]
    ) -> None:
        self.quotas, self.timer_s, self.may_be_broker = quotas, timer_s, may_be_broker

    def dispatch(self, connection: PeerConnection, frame: memoryview, serve: FrameHandler) -> None:
        """Serve a request with `serve`, and pause its connection for the throttle time."""
        client = self.client_of(connection, frame)
        if client is None:
            serve(connection, frame)
            return
        api_key = int.from_bytes(frame[:2], "big")
        meter = connection.meter = RequestMeter(self.quotas, client, self.timer_s)
        meter.charge_arrival(api_key, len(frame))
        started = self.timer_s()
        try:
            serve(connection, frame)
        finally:
            connection.meter = None
            meter.charge_time(self.timer_s() - started)
        if meter.throttle_ms and api_key != ApiKey.FETCH:  # `fetch` does it, because followers are exempt
            connection.throttle(meter.throttle_ms)

    def client_of(self, connection: PeerConnection, frame: memoryview) -> ClientUsage | None:
        """Return the client that sent a request; None if it has no quota or is a broker, or for a malformed request."""
        if len(frame) < FIXED_SIZE:
            return None
        size = FIXED.unpack_from(frame)[3]
        client_id = frame[FIXED_SIZE : FIXED_SIZE + min(max(size, 0), MAX_CLIENT_ID_BYTES)].tobytes()
        if client_id.startswith(BROKER_CLIENT_IDS) and self.may_be_broker(connection.peer):
            return None
        try:
            return self.quotas.client(connection.peer.principal.name, client_id)
        except UnicodeDecodeError:
            return None
