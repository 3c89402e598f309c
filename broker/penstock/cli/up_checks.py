"""What `penstock up` refuses before anything is started: flags that contradict each other, another kind's directory.

Called by `cli.up`. What settings, listeners and etcd's addresses say is the node's to check.
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
    """`--id N` is `--set node.id=N`; refused where both are given and differ."""
    if settings.setdefault(NODE_ID, str(broker_id)) != str(broker_id):
        refuse(f"--id {broker_id} and --set {NODE_ID}={settings[NODE_ID]} contradict each other: leave one out")


def check(options: UpOptions, restart: bool, environment: Mapping[str, str] = os.environ) -> None:
    """One broker, alone or of a cluster."""
    directory = Path(options.data_dir)
    if restart:
        refuse("--restart is for --brokers: let systemd, or the container's policy, start one broker again")
    if (directory / "etcd" / "member").is_dir():
        refuse(f"{directory} is a local cluster's: give --brokers, or for one of its brokers --data {directory}/1")
    if options.etcd:
        check_member(options, directory, environment)
        return
    check_etcd_flags(options)
    if (directory / ADOPTED_FILE).exists():
        refuse(
            f"{directory} was moved into a cluster: start it with --etcd URL and --id, as penstock cluster adopt said,"
            " or give another --data"
        )


def check_member(options: UpOptions, directory: Path, environment: Mapping[str, str]) -> None:
    """A broker of a cluster."""
    if (directory / STATE_FILE).exists():
        refuse(
            f"{directory} is the directory of a broker that is alone: move it into a new cluster with penstock cluster"
            f" adopt --data {directory} --etcd {options.etcd[0]}, or give another --data"
        )
    if not has_id(options, environment):
        refuse("--etcd needs --id: the broker's number, unlike all others of its cluster (or the setting node.id)")


def check_etcd_flags(options: UpOptions) -> None:
    if not options.etcd and (given := [flag for name, flag in ETCD_FLAGS.items() if getattr(options, name)]):
        refuse(f"{given[0]} says how to reach an etcd: give --etcd URL too")


def check_local_cluster(options: UpOptions, brokers: int) -> None:
    """A whole cluster on this machine."""
    directory = Path(options.data_dir)
    check_etcd_flags(options)
    if (directory / META_FILE).exists() or (directory / STATE_FILE).exists():
        refuse(
            f"{directory} is the directory of one broker: give --brokers another --data (penstock cluster adopt moves a"
            " broker that is alone into a cluster)"
        )
    if options.listeners or options.advertise:
        refuse("--listener and --advertise are one broker's: with --brokers, give --host and the first one's --port")
    if NODE_ID in options.settings:
        refuse("with --brokers the ids are 1, 2, 3 and so on: leave --id out")
    first, http = options.port, options.http_port
    for flag, port in (("--port", first), ("--http-port", http or 0)):
        if port + brokers - 1 > LAST_PORT:
            refuse(f"{flag} {port}: {brokers} brokers need as many ports, and {LAST_PORT} is the last")
    if first and http and abs(first - http) < brokers and options.host == options.http_host:
        refuse(f"{brokers} brokers use the ports from {first} on, and from {http} on for HTTP: move them apart")


def has_id(options: UpOptions, environment: Mapping[str, str]) -> bool:
    """Whether anybody said which broker this is; a settings file that cannot be read is the node's to complain of."""
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
    raise typer.BadParameter(message)
