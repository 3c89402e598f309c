"""A broker's validated start options: settings, listeners, limits, etcd. Used by `broker`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from penstock.config import sources
from penstock.config.addresses import InvalidAddress, parse_host
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listener_sasl import BrokerCredentials, broker_credentials
from penstock.config.listener_security import (
    ListenerSecurity,
    check_listener_names,
    inter_broker_listener,
    inter_broker_mechanism,
    listener_security,
)
from penstock.config.listeners import ListenerAddress, advertised_listeners, parse_listeners
from penstock.config.options import UpOptions
from penstock.config.security_settings import AUTHENTICATION_TIMEOUT, SECURITY_SETTINGS
from penstock.runtime.linux import raise_descriptor_limit
from penstock.runtime.logging import get_logger
from penstock.security.quotas.client_quotas import QuotaWindows
from penstock.server.limits import ServerLimits
from penstock.state.etcd.options import EtcdOptions, InvalidEtcdOption

log = get_logger("penstock.node")

CONFIG_FILE = "penstock.toml"
"""Read from the current directory if no other file is given."""
DEFAULT_LISTENER = "PLAINTEXT"
OTHER_DESCRIPTORS = 256
"""Descriptors for the store, listeners, HTTP and short-lived files."""
MIN_CONNECTIONS = 64
CLUSTER_DEFAULTS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
}
"""Defaults of a broker in a cluster; a single broker has one replica per partition."""
SINGLE_BROKER_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
"""Defaults of a single broker: the first group member does not wait for others, as in Kafka's quick start."""


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


def load_config(options: UpOptions, env_vars: Mapping[str, str]) -> BrokerConfig:
    """Load the settings from file, environment and options. Raises `StartError`."""
    file = options.config_file
    try:
        if file is None and os.path.exists(CONFIG_FILE):
            file = CONFIG_FILE
        return sources.load(
            file, env_vars, options.settings, CLUSTER_DEFAULTS if options.etcd else SINGLE_BROKER_DEFAULTS
        )
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    except OSError as e:
        raise StartError(f'cannot read the settings file "{file}": {e.strerror}') from e


def listeners_of(options: UpOptions, config: BrokerConfig) -> list[ListenerAddress]:
    """Return the addresses to listen on: from the command line, else the settings, else one on its host and port.

    Validates the advertised listeners too. Raises `StartError`.
    """
    try:
        if options.listeners:
            listeners = parse_listeners(",".join(options.listeners))
        elif config.listeners:
            listeners = parse_listeners(config.listeners)
        else:
            listeners = [ListenerAddress(DEFAULT_LISTENER, parse_host(options.host), options.port)]
        advertised_listeners(listeners, configured_advertised(options, config), socket.gethostname())
    except (InvalidSetting, InvalidAddress) as e:
        raise StartError(str(e)) from e
    return listeners


def security_of(config: BrokerConfig, listeners: list[ListenerAddress]) -> dict[str, ListenerSecurity]:
    """Return the security of each listener by its name. Raises `StartError`."""
    names = [address.name for address in listeners]
    try:
        check_listener_names(config, names)
        return {name: listener_security(config, name) for name in names}
    except InvalidSetting as e:
        raise StartError(str(e)) from e


def inter_broker_of(config: BrokerConfig, security: dict[str, ListenerSecurity], is_clustered: bool) -> str:
    """Return the name of the listener on which brokers connect to each other. Raises `StartError`."""
    try:
        name = inter_broker_listener(config, list(security))
        if is_clustered:
            inter_broker_mechanism(config, security[name])
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    return name


class PresentCredentials:
    """How this broker logs in to others on their listener, which dynamic settings may change.

    Raises `StartError` if the settings at the start are invalid. Later, the last valid ones stay in use.
    """

    def __init__(self, config: BrokerConfig, security: ListenerSecurity) -> None:
        self.config, self.security, self.error = config, security, ""
        try:
            self.last_valid = broker_credentials(config, security)
        except InvalidSetting as e:
            raise StartError(str(e)) from e

    def __call__(self) -> BrokerCredentials | None:
        """Return the credentials for a new connection; None without SASL."""
        try:
            self.last_valid = broker_credentials(self.config, self.security)
            self.error = ""
        except InvalidSetting as e:
            if str(e) != self.error:
                self.error = str(e)
                log.error("credentials for other brokers not changed; the present ones stay in use", reason=self.error)
        return self.last_valid


def configured_advertised(options: UpOptions, config: BrokerConfig) -> str | None:
    """Return the advertised listeners as text; None if not set."""
    return ",".join(options.advertise) or config.advertised_listeners


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Return the server's limits. Connections get the file descriptors that the logs do not need."""
    left = raise_descriptor_limit() - config.log_max_open_files * 3 // 2 - OTHER_DESCRIPTORS
    return ServerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        max_receive_bytes=config.queued_max_request_bytes,
        idle_s=config.connections_max_idle_ms / 1000,
        handshake_s=broker_number(config, AUTHENTICATION_TIMEOUT) / 1000,
        max_connections=min(config.max_connections, max(left, MIN_CONNECTIONS)),
        max_connections_per_ip=config.max_connections_per_ip,
    )


def quota_windows(config: BrokerConfig) -> QuotaWindows:
    """Return the windows in which the usage of quotas is measured."""
    return QuotaWindows(
        config.quota_window_num,
        config.quota_window_size_seconds,
        config.controller_quota_window_num,
        config.controller_quota_window_size_seconds,
    )


def broker_number(config: BrokerConfig, setting: str) -> int:
    """Return the value of a number among the security settings that all listeners share."""
    known = SECURITY_SETTINGS[setting]
    text = config.text(setting)
    value = known.parse(known.default or "" if text is None else text)
    assert isinstance(value, int), f"{setting} is a number with a default"
    return value


def etcd_of(options: UpOptions) -> EtcdOptions | None:
    """Return the etcd options; None for a single broker. Raises `StartError`."""
    if not options.etcd:
        return None
    password = None
    if options.etcd_password_file is not None:
        try:
            with open(options.etcd_password_file, encoding="utf-8") as file:
                password = file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as e:
            raise StartError(f'cannot read etcd\'s password from "{options.etcd_password_file}": {e}') from e
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
