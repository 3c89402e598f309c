"""nats-server with JetStream, one node or three: a Go module, built once into the benchmark's cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench import nats_wire
from bench.peers.broker import Broker, free_port
from bench.peers.kafka import cache_dir
from bench.peers.queue_cluster import QueueContender, QueueNode, nodes_on, program

VERSION = "2.15.3"
HOW = (
    f"build it with `GOBIN=PENSTOCK_BENCH_CACHE/nats-server-{VERSION} go install "
    f"github.com/nats-io/nats-server/v2@v{VERSION}` (see bench/README.md, section Queue servers)"
)
_CONFIGURATION = """server_name: {name}
listen: 127.0.0.1:{port}
jetstream {{
  store_dir: "{store}"
{sync}}}
"""
_CLUSTER = """cluster {{
  name: bench
  listen: 127.0.0.1:{route_port}
  routes: [{routes}]
}}
"""


class _Node(QueueNode):
    """One nats-server; `route_ports` are those of all nodes of the cluster."""

    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, number: int, route_ports: Sequence[int], *, syncs_always: bool) -> None:
        self.label = f"nats-{number}"
        self._number, self._route_ports, self._syncs_always = number, route_ports, syncs_always
        self._program = program("nats-server", cache_dir() / f"nats-server-{VERSION}" / "nats-server", HOW)

    def version(self) -> str:
        return f"nats-server {VERSION}"

    def prepare(self, data_dir: Path, port: int) -> None:
        data_dir.mkdir(parents=True)
        sync = "  sync_interval: always\n" if self._syncs_always else ""
        name = node_name(self._number)
        text = _CONFIGURATION.format(name=name, port=port, store=data_dir / "jetstream", sync=sync)
        if len(self._route_ports) > 1:
            routes = ", ".join(f"nats://127.0.0.1:{route_port}" for route_port in self._route_ports)
            text += _CLUSTER.format(route_port=self._route_ports[self._number - 1], routes=routes)
        (data_dir / "nats.conf").write_text(text)

    def command(self, data_dir: Path, port: int) -> list[str]:
        del port  # prepare() has written it into the configuration
        return [self._program, "--config", str(data_dir / "nats.conf")]


def node_name(number: int) -> str:
    """Return the name with which a node appears in the responses of JetStream."""
    return f"n{number}"


class Nats(QueueContender):
    """Nodes with JetStream. `syncs_always`: each message is on disk before the publisher's response; the default of
    the server is a sync every two minutes."""

    protocol = "nats"
    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, nodes: int = 1, *, syncs_always: bool = True) -> None:
        super().__init__(nodes)
        self.label = "jetstream" if syncs_always else "jetstream default"
        self._syncs_always = syncs_always
        program("nats-server", cache_dir() / f"nats-server-{VERSION}" / "nats-server", HOW)

    def version(self) -> str:
        kind = "" if self.nodes == 1 else f" ({self.nodes} nodes)"
        sync = "sync_interval: always" if self._syncs_always else "default sync_interval"
        return f"nats-server {VERSION}{kind}, {sync}"

    def parts(self, cores: set[int], home: Path) -> tuple[None, list[Broker]]:
        ports = [free_port() for _ in range(self.nodes)]
        recipes: list[QueueNode] = [
            _Node(number, ports, syncs_always=self._syncs_always) for number in range(1, self.nodes + 1)
        ]
        return None, nodes_on(recipes, cores, home)

    def is_whole(self, brokers: Sequence[Broker]) -> bool:
        """Return whether each node reports that JetStream serves; a cluster elects its leader first."""
        return all(nats_wire.is_serving(broker.address, self.nodes) for broker in brokers)
