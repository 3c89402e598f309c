"""What a broker was asked for, checked: its settings, its listeners, its bounds, its etcd. Read by `broker`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from penstock.config import sources
from penstock.config.addresses import InvalidAddress, parse_host
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listeners import ListenerAddress, advertised, parse_listeners
from penstock.config.options import UpOptions
from penstock.runtime.linux import raise_descriptor_limit
from penstock.server.limits import ServerLimits
from penstock.state.etcd.options import EtcdOptions, InvalidEtcdOption

CONFIG_FILE = "penstock.toml"
"""Read from the current directory where no other file is named."""
DEFAULT_LISTENER = "PLAINTEXT"
OTHER_DESCRIPTORS = 256
"""What else is open: the store, listeners, HTTP, files that are looked at in passing."""
FEWEST_CONNECTIONS = 64
CLUSTER_DEFAULTS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
}
"""Defaults of a broker in a cluster; a broker that is alone has one replica of each partition."""
LONE_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
"""Defaults of a lone broker: the first member of a group does not wait for others, as in Kafka's quick start."""


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


def load_config(options: UpOptions, environment: Mapping[str, str]) -> BrokerConfig:
    """Raises StartError."""
    file = options.config_file
    try:
        if file is None and os.path.exists(CONFIG_FILE):
            file = CONFIG_FILE
        return sources.load(file, environment, options.settings, CLUSTER_DEFAULTS if options.etcd else LONE_DEFAULTS)
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    except OSError as e:
        raise StartError(f"the settings in {file} cannot be read: {e.strerror}") from e


def listeners_of(options: UpOptions, config: BrokerConfig) -> list[ListenerAddress]:
    """Return where to listen: the command line's listeners, else the settings', else one on its host and port.

    Checks what is advertised for them, too. Raises StartError.
    """
    try:
        if options.listeners:
            listeners = parse_listeners(",".join(options.listeners))
        elif config.listeners:
            listeners = parse_listeners(config.listeners)
        else:
            listeners = [ListenerAddress(DEFAULT_LISTENER, parse_host(options.host), options.port)]
        advertised(listeners, given_advertised(options, config), socket.gethostname())
    except (InvalidSetting, InvalidAddress) as e:
        raise StartError(str(e)) from e
    return listeners


def given_advertised(options: UpOptions, config: BrokerConfig) -> str | None:
    """What is to be advertised, as text; None where nothing is given."""
    return ",".join(options.advertise) or config.advertised_listeners


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Connections get the descriptors that the logs leave: none of theirs may fail for want of one."""
    left = raise_descriptor_limit() - config.log_max_open_files * 3 // 2 - OTHER_DESCRIPTORS
    return ServerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        max_receive_bytes=config.queued_max_request_bytes,
        idle_s=config.connections_max_idle_ms / 1000,
        max_connections=min(config.max_connections, max(left, FEWEST_CONNECTIONS)),
        max_connections_per_ip=config.max_connections_per_ip,
    )


def etcd_of(options: UpOptions) -> EtcdOptions | None:
    """How to reach the etcd; None where the broker is alone. Raises StartError."""
    if not options.etcd:
        return None
    password = None
    if options.etcd_password_file is not None:
        try:
            with open(options.etcd_password_file, encoding="utf-8") as file:
                password = file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as e:
            raise StartError(f"etcd's password cannot be read from {options.etcd_password_file}: {e}") from e
    try:
        return EtcdOptions(
            endpoints=tuple(options.etcd),
            ca_file=options.etcd_ca_file,
            cert_file=options.etcd_cert_file,
            key_file=options.etcd_key_file,
            user=options.etcd_user,
            password=password,
        )
    except InvalidEtcdOption as e:
        raise StartError(str(e)) from e
