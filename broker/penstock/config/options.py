"""What `penstock up` was asked for, before any of it is checked.

Made by the command line, read by `node`. It names no setting itself: `config.sources` merges `config_file`, the
environment and `settings`, and answers for unknown names and bad values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LogFormat = Literal["auto", "text", "json"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_HTTP_PORT = 8080
DEFAULT_DATA_DIR = "./penstock-data"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The flags of `penstock up`.

    `port` and `http_port` 0 pick a free port; `http_port` None serves no HTTP. `listeners` and `advertise` hold
    `NAME://host:port`, in the order given; with no `listeners` there is one, on `host` and `port`. `settings` are the
    `--set` pairs by Kafka's names; they win over the environment, which wins over `config_file` (None where no file
    was named). `log_format` "auto" is text on a terminal and JSON elsewhere.

    `etcd` holds the endpoints of the etcd that has the cluster's state; with none the broker is alone and keeps its
    state in the data directory. The files are PEM; `etcd_password_file` holds the password of `etcd_user`.
    """

    data_dir: str = DEFAULT_DATA_DIR
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    http_host: str = DEFAULT_HOST
    http_port: int | None = DEFAULT_HTTP_PORT
    listeners: list[str] = field(default_factory=list)
    advertise: list[str] = field(default_factory=list)
    config_file: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    etcd: list[str] = field(default_factory=list)
    etcd_user: str | None = None
    etcd_password_file: str | None = None
    etcd_ca_file: str | None = None
    etcd_cert_file: str | None = None
    etcd_key_file: str | None = None
    log_level: str = "info"
    log_format: LogFormat = "auto"
