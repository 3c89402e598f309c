"""The options, directories and commands of a local cluster's processes. Starts nothing."""

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
ETCD_MANAGED = "etcd.managed"
"""Lets brokers compact and defragment this etcd, as no other application uses it."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The options of `penstock up`, meant for all brokers.

    Broker N gets the options that `broker` returns. Ports other than 0 are the first broker's; later brokers count up.
    """

    options: UpOptions
    brokers: int
    restart: bool = False

    @property
    def directory(self) -> Path:
        """Return the cluster's data directory."""
        return Path(self.options.data_dir)

    @property
    def etcd_directory(self) -> Path:
        """Return etcd's data directory."""
        return self.directory / ETCD_DIRECTORY

    @property
    def broker_ids(self) -> range:
        """Return the brokers' ids."""
        return range(1, self.brokers + 1)

    def broker_options(self, number: int, endpoints: list[str], log_format: str) -> UpOptions:
        """Return the options of one broker."""
        options, after = self.options, number - 1
        port = options.port + after if options.port else 0
        settings = {**options.settings, "node.id": str(number)}
        if not options.etcd:
            settings.setdefault(ETCD_MANAGED, "true")
        return replace(
            options,
            data_dir=str(self.directory / str(number)),
            port=port,
            # Set explicitly: a listener in the settings would be the same for all brokers.
            listeners=[listener(options.host, port)],
            http_port=options.http_port + after if options.http_port else options.http_port,
            settings=settings,
            etcd=endpoints,
            log_format="text" if log_format == "text" else "json",
        )

    def unstarted_brokers(self) -> list[int]:
        """Return ids of brokers that have data here but are not part of the cluster."""
        if not self.directory.is_dir():
            return []
        found = [int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and len(p.name) < 10]
        return sorted(number for number in found if number not in self.broker_ids)


def listener(host: str, port: int) -> str:
    """Return the broker's only listener."""
    return f"{LISTENER}://{join_host_port(host, port)}"


def with_ports(options: UpOptions, address: str, http: str) -> UpOptions:
    """Return the options with the ports a broker reported, so that it keeps them after a restart."""
    port, http_port = (text.rpartition(":")[2] for text in (address, http))
    if not port.isdecimal():
        return options
    return replace(
        options,
        port=int(port),
        listeners=[listener(options.host, int(port))],
        http_port=int(http_port) if http_port.isdecimal() else options.http_port,
    )


def broker_command(options: UpOptions) -> list[str]:
    """Return the command that runs one broker."""
    return [sys.executable, "-m", "penstock.node", msgspec.json.encode(options).decode()]


def manual_command(options: UpOptions) -> str:
    """Return the command line that starts one broker of the cluster manually."""
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
