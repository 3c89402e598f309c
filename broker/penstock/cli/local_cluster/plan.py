"""What a local cluster consists of: each broker's options and where things are. No processes, no I/O but looking."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.cli.up_checks import ETCD_FLAGS
from penstock.config.addresses import join_host_port
from penstock.config.options import UpOptions

LISTENER = "PLAINTEXT"
ETCD_DIRECTORY = "etcd"
MANAGED = "etcd.managed"
"""That brokers may compact this etcd: it is theirs alone."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """`options` are those of `penstock up`, meant for all brokers; broker N of `brokers` gets what `broker` makes of
    them. Ports other than 0 are the first broker's; the next one has the next."""

    options: UpOptions
    brokers: int
    restart: bool = False

    @property
    def directory(self) -> Path:
        return Path(self.options.data_dir)

    @property
    def etcd_directory(self) -> Path:
        return self.directory / ETCD_DIRECTORY

    @property
    def numbers(self) -> range:
        """The brokers' ids."""
        return range(1, self.brokers + 1)

    def broker(self, number: int, endpoints: list[str], log_format: str) -> UpOptions:
        options, after = self.options, number - 1
        port = options.port + after if options.port else 0
        settings = {**options.settings, "node.id": str(number)}
        if not options.etcd:
            settings.setdefault(MANAGED, "true")
        return replace(
            options,
            data_dir=str(self.directory / str(number)),
            port=port,
            # Said in full: a listener in the settings would be the same one for all brokers.
            listeners=[listener(options.host, port)],
            http_port=options.http_port + after if options.http_port else options.http_port,
            settings=settings,
            etcd=endpoints,
            log_format="text" if log_format == "text" else "json",
        )

    def others(self) -> list[int]:
        """Ids of brokers that have data here and are not among those to be started."""
        if not self.directory.is_dir():
            return []
        found = [int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and len(p.name) < 10]
        return sorted(number for number in found if number not in self.numbers)


def listener(host: str, port: int) -> str:
    return f"{LISTENER}://{join_host_port(host, port)}"


def settled(options: UpOptions, address: str, http: str) -> UpOptions:
    """With the ports that a broker said it has, so that it has the same when it is started again."""
    port, http_port = (text.rpartition(":")[2] for text in (address, http))
    if not port.isdecimal():
        return options
    return replace(
        options,
        port=int(port),
        listeners=[listener(options.host, int(port))],
        http_port=int(http_port) if http_port.isdecimal() else options.http_port,
    )


def command(options: UpOptions) -> list[str]:
    """The process of one broker."""
    return [sys.executable, "-m", "penstock.node", msgspec.json.encode(options).decode()]


def by_hand(options: UpOptions) -> str:
    """How a person starts one broker of the cluster again."""
    words = ["penstock", "up"]
    for url in options.etcd:
        words += ["--etcd", url]
    for name, flag in ETCD_FLAGS.items():
        words += [flag, value] if (value := getattr(options, name)) else []
    words += ["--id", options.settings["node.id"], "--data", options.data_dir]
    words += ["--host", options.host] if options.host != UpOptions().host else []
    words += ["--port", str(options.port), "--http-port", str(-1 if options.http_port is None else options.http_port)]
    for name, value in options.settings.items():
        words += ["--set", f"{name}={value}"] if name != "node.id" else []
    words += ["--config", options.config_file] if options.config_file else []
    return shlex.join(words)
