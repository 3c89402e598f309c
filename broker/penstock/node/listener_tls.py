"""TLS of a broker's listeners: loads it at startup and reloads it. Used by `broker`, which imports this only if a
listener has TLS: the libraries that it needs take memory and time to load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import ListenerSecurity, TlsSettings, listener_security
from penstock.node.settings import StartError
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.reloading import CertificateReloader


def load_listeners(security: Iterable[ListenerSecurity]) -> dict[str, ListenerTls]:
    """Load the certificates of the listeners with TLS. Raises `StartError`."""
    try:
        return {each.listener: ListenerTls.load(each) for each in security if each.tls is not None}
    except InvalidSetting as e:
        raise StartError(str(e)) from e


def start_reloader(
    config: BrokerConfig, listeners: Mapping[str, ListenerTls], executor: Executor | None
) -> CertificateReloader:
    """Start to reload certificates when their files or the settings change."""

    def settings_of(listener: str) -> TlsSettings:
        found = listener_security(config, listener).tls
        assert found is not None, "the protocol of a listener does not change"
        return found

    reloader = CertificateReloader(list(listeners.values()), settings_of, executor)
    config.subscribe(reloader.on_settings_changed)
    reloader.start()
    return reloader
