"""Checks of `penstock up` before anything starts: contradicting flags, and data directories of another kind.

Called by `cli.up`. `penstock.node` validates settings, listeners and etcd endpoints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import typer

from penstock.adopt.files import ADOPTED_FILE, STATE_FILE
from penstock.config.options import UpOptions

NODE_ID = "node.id"
ID_VARIABLE = "PENSTOCK_SET_NODE_ID"
CONFIG_FILE = "penstock.toml"
META_FILE = "meta.json"
LAST_PORT = 65_535
ETCD_FLAGS = {
    "etcd_user": "--etcd-user",
    "etcd_password_file": "--etcd-password-file",
    "etcd_ca_file": "--etcd-ca",
    "etcd_cert_file": "--etcd-cert",
    "etcd_key_file": "--etcd-key",
}


def set_id(settings: dict[str, str], broker_id: int) -> None:
    """Apply `--id N` as `--set node.id=N`. Raises `typer.BadParameter` if both are given and differ."""
    if settings.setdefault(NODE_ID, str(broker_id)) != str(broker_id):
        refuse(f"--id {broker_id} and --set {NODE_ID}={settings[NODE_ID]} contradict each other; leave one out")


def check(options: UpOptions, restart: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Check the options of one broker, single-node or cluster member."""
    directory = Path(options.data_dir)
    check_bootstrap_user(options)
    if restart:
        refuse("--restart needs --brokers; for a single broker, use the restart policy of systemd or of the container")
    if (directory / "etcd" / "member").is_dir():
        refuse(f'data directory "{directory}" belongs to a local cluster; set --brokers, or --data {directory}/1')
    if options.etcd:
        check_member(options, directory, environment)
        return
    check_etcd_flags(options)
    if (directory / ADOPTED_FILE).exists():
        refuse(
            f'data directory "{directory}" was moved into a cluster; start it with --etcd URL and --id, as printed by'
            " `penstock cluster adopt`, or set another --data"
        )


def check_bootstrap_user(options: UpOptions) -> None:
    """Raise `typer.BadParameter` unless the first administrator has a name and a password file, or neither."""
    if options.bootstrap_user == "":
        refuse("--bootstrap-user is empty; set it to the name of the first administrator")
    if (options.bootstrap_user is None) != (options.bootstrap_password_file is None):
        refuse("--bootstrap-user and --bootstrap-password-file belong together; set both, or leave both out")


def check_secure(options: UpOptions, brokers: int | None) -> None:
    """Raise `typer.BadParameter` if `--secure` is used for more than one broker, or with another administrator."""
    if options.etcd or brokers is not None:
        other = "--brokers" if brokers is not None else "--etcd"
        refuse(
            f"--secure cannot be used with {other}: it secures a single broker; for a cluster, set the listeners' `ssl`"
            " and `sasl` settings"
        )
    if options.bootstrap_user is not None:
        refuse("--bootstrap-user cannot be used with --secure, whose administrator is `admin`; leave one out")


def check_member(options: UpOptions, directory: Path, environment: Mapping[str, str]) -> None:
    """Check the options of a broker that joins a cluster."""
    if (directory / STATE_FILE).exists():
        refuse(
            f'data directory "{directory}" belongs to a single-node broker; move it into a new cluster with'
            f" `penstock cluster adopt --data {directory} --etcd {options.etcd[0]}`, or set another --data"
        )
    if not has_id(options, environment):
        refuse("--etcd needs --id; set it (or `node.id`) to a broker id that is unique in the cluster")


def check_etcd_flags(options: UpOptions) -> None:
    """Raise `typer.BadParameter` if an etcd option is set without `--etcd`."""
    if not options.etcd and (given := [flag for name, flag in ETCD_FLAGS.items() if getattr(options, name)]):
        refuse(f"{given[0]} needs --etcd; set --etcd URL, or leave {given[0]} out")


def check_local_cluster(options: UpOptions, brokers: int) -> None:
    """Check the options of `--brokers N`, a local cluster."""
    directory = Path(options.data_dir)
    check_etcd_flags(options)
    if (directory / META_FILE).exists() or (directory / STATE_FILE).exists():
        refuse(
            f'data directory "{directory}" belongs to a single broker; set another --data (`penstock cluster adopt`'
            " moves a single-node broker into a cluster)"
        )
    if options.listeners or options.advertise:
        refuse("--listener and --advertise cannot be used with --brokers; set --host, and --port of the first broker")
    if NODE_ID in options.settings:
        refuse("--id cannot be used with --brokers, which assigns the ids 1, 2, 3, ...; leave --id out")
    first, http = options.port, options.http_port
    for flag, port in (("--port", first), ("--http-port", http or 0)):
        if port + brokers - 1 > LAST_PORT:
            refuse(
                f"{flag} {port} is too high: {brokers} brokers need ports up to {port + brokers - 1}; use a lower one"
            )
    if first and http and abs(first - http) < brokers and options.host == options.http_host:
        refuse(f"--port {first} and --http-port {http} overlap for {brokers} brokers; choose ports further apart")


def has_id(options: UpOptions, environment: Mapping[str, str]) -> bool:
    """Return whether the broker id is configured. True if the settings file cannot be read: the node reports that
    error.
    """
    if NODE_ID in options.settings or ID_VARIABLE in environment:
        return True
    from penstock.config.definition import InvalidSetting
    from penstock.config.sources import read_file

    try:
        return NODE_ID in read_file(options.config_file or CONFIG_FILE)
    except FileNotFoundError:
        return options.config_file is not None
    except (InvalidSetting, OSError):
        return True


def refuse(message: str) -> NoReturn:
    """Raise `typer.BadParameter`."""
    raise typer.BadParameter(message)
