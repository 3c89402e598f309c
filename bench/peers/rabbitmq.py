"""RabbitMQ from Debian's packages, one node or three, each a process of its own with its data in a directory.

The system's service is not used. The node's flags are those of Debian's rabbitmq-server script. Erlang's name server
(epmd) runs for the duration of the service, on a port of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench import amqp_wire
from bench.peers.broker import Broker, free_port
from bench.peers.kafka import cache_dir
from bench.peers.queue_cluster import PeerUnavailable, QueueContender, QueueNode, nodes_on

HOW = (
    "install it with `apt-get install rabbitmq-server`, or unpack the packages into the cache (see bench/README.md, "
    "section Queue servers)"
)
COOKIE = "bench"
_FLAGS = (
    *("-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl", "+W", "w"),
    *("+MBas", "ageffcbf", "+MHas", "ageffcbf", "+MBlmbcs", "512", "+MHlmbcs", "512", "+MMmcs", "30"),
    *("+P", "1048576", "+t", "5000000", "+stbt", "db", "+zdbbl", "128000"),
    *("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"),
    *("-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false"),
    *("-kernel", "prevent_overlapping_partitions", "false"),
)


class Installation:
    """Where RabbitMQ and Erlang are: in the benchmark's cache or in the system."""

    def __init__(self) -> None:
        for root in (cache_dir() / "rabbitmq" / "root", Path("/")):
            homes = sorted((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
            runtimes = sorted((root / "usr/lib/erlang").glob("erts-*"))
            if homes and runtimes:
                self.home, self.erlang, self.bin = homes[-1], root / "usr/lib/erlang", runtimes[-1] / "bin"
                return
        raise PeerUnavailable(f"RabbitMQ is not installed; {HOW}")

    def version(self) -> str:
        found = re.search(r"rabbitmq_server-(.+)", self.home.name)
        return f"RabbitMQ {found.group(1) if found else 'of an unknown version'}"


class Epmd(QueueNode):
    """Erlang's name server, at which the nodes find each other."""

    label = "epmd"
    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def version(self) -> str:
        return "epmd"

    def command(self, data_dir: Path, port: int) -> list[str]:
        return [str(self._installation.bin / "epmd"), "-port", str(port), "-address", "127.0.0.1"]


class _Node(QueueNode):
    """One node of RabbitMQ."""

    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, installation: Installation, number: int, nodes: int, epmd_port: int) -> None:
        self.label = f"rabbitmq-{number}"
        self._installation, self._number, self._nodes = installation, number, nodes
        self._epmd_port, self._distribution_port = epmd_port, free_port()
        self._data_dir: Path | None = None

    def version(self) -> str:
        return self._installation.version()

    def prepare(self, data_dir: Path, port: int) -> None:
        self._data_dir = data_dir
        data_dir.mkdir(parents=True)
        lines = [f"listeners.tcp.local = 127.0.0.1:{port}", "log.console = true", "log.file = false"]
        if self._nodes > 1:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            members = range(1, self._nodes + 1)
            lines += [f"cluster_formation.classic_config.nodes.{n} = {_node_name(n)}" for n in members]
        (data_dir / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (data_dir / "enabled_plugins").write_text("[].\n")

    def command(self, data_dir: Path, port: int) -> list[str]:
        del data_dir, port  # prepare() has written them into the configuration
        code = self._installation.home / "escript"
        return [str(self._installation.bin / "erlexec"), "-pa", str(code), *_FLAGS, "-setcookie", COOKIE]

    def environment(self) -> dict[str, str]:
        """Return RabbitMQ's variables as its scripts would set them."""
        assert self._data_dir is not None, "a node is prepared before it starts"
        home = self._installation.home
        return {
            **super().environment(),
            "ROOTDIR": str(self._installation.erlang),
            "BINDIR": str(self._installation.bin),
            "EMU": "beam",
            "PROGNAME": "erl",
            "HOME": str(self._data_dir),
            "LANG": "C.UTF-8",
            "ERL_LIBS": str(home / "plugins"),
            "ERL_MAX_PORTS": "65536",
            "ERL_MAX_ETS_TABLES": "50000",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_NODENAME": _node_name(self._number),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONFIG_FILE": str(self._data_dir / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._data_dir / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._data_dir / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._data_dir / "log"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self._data_dir / "feature_flags"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }


def _node_name(number: int) -> str:
    return f"rabbit{number}@localhost"


class RabbitMq(QueueContender):
    """Nodes with the default settings. A quorum queue writes each message to disk before the publisher's confirm."""

    label = "rabbitmq"
    protocol = "amqp"
    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self._installation = Installation()

    def version(self) -> str:
        kind = "" if self.nodes == 1 else f" ({self.nodes} nodes)"
        return self._installation.version() + kind

    def parts(self, cores: set[int], home: Path) -> tuple[Broker, list[Broker]]:
        epmd = Broker(Epmd(self._installation), cores, home)
        recipes = [_Node(self._installation, n, self.nodes, epmd.port) for n in range(1, self.nodes + 1)]
        return epmd, nodes_on(recipes, cores, home)

    def is_whole(self, brokers: Sequence[Broker]) -> bool:
        """Return whether each node accepts a login and has logged that each other node is up."""
        return all(amqp_wire.is_serving(broker.address) for broker in brokers) and all(
            f"rabbit on node {_node_name(other)} up" in broker.log_path.read_text(errors="replace")
            for number, broker in enumerate(brokers, 1)
            for other in range(1, len(brokers) + 1)
            if other != number
        )
