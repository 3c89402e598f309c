"""One of the two services as a target of requests: addresses, connections, and the ids that it has assigned."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bench.connection import Connection
from bench.peers.service import Service
from penstock.wire.schema import MalformedMessage
from penstock_differential import codec
from penstock_differential.values import Tree, resolve

ANSWER_LIMIT_S = 10.0
FIND_LIMIT_S = 30.0
POLL_S = 0.02
WARM_UP_NAMES = 40
"""Names that together cover every partition of the coordinators' topics, which have 4."""
PASSING = frozenset({5, 14, 15, 16})
"""Errors of FindCoordinator and other APIs while a coordinator is created or loaded."""


@dataclass(frozen=True)
class Answer:
    """One side's response to a request, or the reason for its absence ("closed", "silent", "malformed: ...")."""

    tree: Tree | None
    failure: str | None = None


@dataclass(frozen=True)
class Route:
    """The target of a request: any broker, a partition's leader, a coordinator, or the broker with an id."""

    kind: str = "any"
    name: str = ""
    partition: int = 0


class PipelinedConnection(Connection):
    """A connection with pipelined requests."""

    def receive(self) -> bytes:
        """Return the next response, without its size."""
        (size_bytes,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size_bytes)


class Side:
    """Sends requests to one service and stores the values that the service has assigned."""

    def __init__(self, label: str, service: Service) -> None:
        self.label = label
        self.service = service
        self.assigned: dict[str, Any] = {}
        self._connections: dict[tuple[str, str], PipelinedConnection] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self._coordinators: dict[tuple[str, str], str] = {}
        self._attempts = 0
        """Number of route refreshes in this case."""

    def name_of(self, value: Any, is_epoch: bool = False) -> str | None:
        """Return the name of a value that this side assigned; None if it is unknown. Ids and epochs may be equal."""
        for name, assigned in self.assigned.items():
            if type(assigned) is type(value) and assigned == value and name.endswith("epoch") is is_epoch:
                return name
        return None

    def forget(self) -> None:
        """Drop the assigned values, the routes and all connections but the main ones, for a new case."""
        self.assigned.clear()
        self._leaders.clear()
        self._coordinators.clear()
        self._attempts = 0
        for key in [key for key in self._connections if key[0] != "main"]:
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def send(self, api: str, version: int, tree: Tree, route: Route, channel: str) -> Callable[[], Answer]:
        """Send a request now; calling the result waits for the answer."""
        return self.send_frame(
            api, version, codec.request_frame(api, version, resolve(tree, self.assigned)), route, channel
        )

    def send_frame(self, api: str, version: int, frame: bytes, route: Route, channel: str) -> Callable[[], Answer]:
        """Send bytes unchanged; calling the result waits for the answer."""
        key = (channel, self.address(route))
        try:
            connection = self._connection(key)
            connection.socket.sendall(frame)
        except OSError:
            self._drop(key)
            return lambda: Answer(None, "closed")
        return lambda: self._receive(api, version, key)

    def ask(self, api: str, version: int, tree: Tree, route: Route | None = None, channel: str = "main") -> Answer:
        """Send a request and return its answer."""
        return self.send(api, version, tree, route or Route(), channel)()

    def _receive(self, api: str, version: int, key: tuple[str, str]) -> Answer:
        connection = self._connections.get(key)
        if connection is None:
            return Answer(None, "closed")
        try:
            frame = connection.receive()
            return Answer(codec.response_tree(api, version, frame))
        except TimeoutError:
            self._drop(key)
            return Answer(None, "silent")
        except OSError:
            self._drop(key)
            return Answer(None, "closed")
        except MalformedMessage as e:
            self._drop(key)
            return Answer(None, f"malformed: {e}")

    def _connection(self, key: tuple[str, str]) -> PipelinedConnection:
        if key not in self._connections:
            self._connections[key] = self.connect(*key)
        return self._connections[key]

    def connect(self, channel: str, address: str) -> PipelinedConnection:
        """Open the connection of a channel to a broker. Raises OSError."""
        return PipelinedConnection(address, ANSWER_LIMIT_S)

    def _drop(self, key: tuple[str, str]) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()

    def address(self, route: Route) -> str:
        """Return the current address of a route."""
        addresses = self.service.addresses
        if len(addresses) == 1:
            return addresses[0]
        if route.kind == "broker":
            return addresses[route.partition - 1]
        if route.kind == "leader":
            return self._leader(route.name, route.partition) or addresses[0]
        if route.kind in ("group", "transaction"):
            return self._coordinator(route.kind, route.name)
        return addresses[0]

    def forget_routes(self) -> None:
        """Refresh leaders and coordinators from now on, and try the next broker if one does not answer."""
        self._attempts += 1
        self._leaders.clear()
        self._coordinators.clear()

    def _leader(self, topic: str, partition: int) -> str | None:
        if (topic, partition) not in self._leaders:
            answer = self.ask("Metadata", 9, {"topics": [{"name": topic}]})
            if answer.tree is None:
                return None
            ids = {broker["node_id"]: f"{broker['host']}:{broker['port']}" for broker in answer.tree["brokers"]}
            for part in answer.tree["topics"][0]["partitions"]:
                if part["leader_id"] in ids:
                    self._leaders[topic, part["partition_index"]] = ids[part["leader_id"]]
        return self._leaders.get((topic, partition))

    def _coordinator(self, kind: str, name: str) -> str:
        if (kind, name) not in self._coordinators:
            addresses = self.service.addresses
            known = self.find_coordinator(kind, name)
            self._coordinators[kind, name] = known or addresses[self._attempts % len(addresses)]
        return self._coordinators[kind, name]

    def find_coordinator(self, kind: str, name: str, limit_s: float = FIND_LIMIT_S) -> str | None:
        """Return the coordinator's address; wait while there is none. None for a name that cannot have one."""
        deadline = time.monotonic() + limit_s
        request = {"key": name, "key_type": 0 if kind == "group" else 1}
        while True:
            tree = self.ask("FindCoordinator", 2, request).tree
            if tree is not None and tree["error_code"] == 0:
                return f"{tree['host']}:{tree['port']}"
            if (tree is not None and tree["error_code"] not in PASSING) or time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)

    def warm_up(self) -> None:
        """Trigger the creation of the coordinators' topics, and wait until every coordinator answers."""
        deadline = time.monotonic() + FIND_LIMIT_S
        for index in range(WARM_UP_NAMES):
            name = f"warm-up-{index}"
            self.find_coordinator("group", name)
            self.find_coordinator("transaction", name)
            questions: list[tuple[str, Tree, Route]] = [
                ("Heartbeat", {"group_id": name, "member_id": "m"}, Route("group", name)),
                ("AddOffsetsToTxn", {"transactional_id": name, "group_id": name}, Route("transaction", name)),
            ]
            for api, tree, route in questions:
                while time.monotonic() < deadline:
                    found = self.ask(api, 0, tree, route).tree
                    if found is not None and found["error_code"] not in PASSING:
                        break
                    time.sleep(POLL_S)

    def topic_id(self, topic: str) -> UUID | None:
        """Return the id of a topic, None while this side does not know the topic."""
        tree = self.ask("Metadata", 12, {"topics": [{"name": topic}]}).tree
        if tree is None or tree["topics"][0]["error_code"]:
            return None
        found = tree["topics"][0]["topic_id"]
        assert isinstance(found, UUID), "Metadata 12 has topic ids"
        return found
