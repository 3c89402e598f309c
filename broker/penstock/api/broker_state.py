"""The state of a broker that DescribeConfigs reports beside its settings: release, draining, certificates.

Clients read it with the settings, because Kafka's protocol has no request for it. Used by `configs`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from penstock import __version__
from penstock.config.broker import BrokerConfig
from penstock.config.definition import Setting, SettingSource, SettingType
from penstock.control.broker_availability import is_removable
from penstock.control.config_describe import ConfigDescription, ConfigSynonym
from penstock.state.view import ClusterView

REMOVABLE = Setting(
    "broker.removable",
    SettingType.BOOLEAN,
    None,
    "Whether no partition has a replica on this draining broker, so that it can be removed from the cluster.",
)
"""The progress of `broker.draining`."""
RELEASE = Setting("penstock.release", SettingType.STRING, __version__, "The release that this broker runs.")
"""The release may differ between brokers during a rolling upgrade."""
CERTIFICATES = Setting(
    "penstock.certificates",
    SettingType.STRING,
    None,
    "The certificates of this broker's ports as JSON: listener, expires_ms (in ms since 1970), reload_error.",
)


class ListenerCertificate(Protocol):
    """The certificate in use on a listener, `server.tls.listener_tls.ListenerTls`."""

    listener: str
    reload_error: str | None

    @property
    def expires_at(self) -> float:
        """When the certificate expires, in seconds since 1970."""


class BrokerState:
    """The state of this broker. `certificates` has the ports with TLS."""

    def __init__(self, view: ClusterView, config: BrokerConfig, certificates: Sequence[ListenerCertificate]) -> None:
        self.view, self.config, self.certificates = view, config, certificates

    def describe(self) -> list[ConfigDescription]:
        """Return the entries; those about draining and certificates only if the broker drains or has TLS."""
        found = [described(RELEASE, __version__)]
        if self.config.broker_draining:
            found.append(described(REMOVABLE, str(is_removable(self.view, self.config.node_id)).lower()))
        if self.certificates:
            found.append(described(CERTIFICATES, certificates_text(self.certificates)))
        return found


def certificates_text(certificates: Sequence[ListenerCertificate]) -> str:
    """Return the certificates as JSON."""
    return json.dumps(
        [
            {"listener": c.listener, "expires_ms": int(c.expires_at * 1000), "reload_error": c.reload_error}
            for c in certificates
        ]
    )


def described(entry: Setting, text: str) -> ConfigDescription:
    """Return an entry that cannot be set."""
    synonym = ConfigSynonym(entry.name, text, SettingSource.DEFAULT)
    return ConfigDescription(entry, text, SettingSource.DEFAULT, [synonym], is_read_only=True)
