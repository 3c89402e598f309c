"""TLS of a broker's listeners: loads it at startup and reloads it. Used by `broker`, which imports this only if a
listener has TLS: the libraries that it needs take memory and time to load."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import ListenerSecurity, SecurityProtocol, TlsSettings, listener_security
from penstock.node.settings import StartError
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.own_trust import check_own_trust
from penstock.server.tls.reloading import CertificateReloader

HTTP = "http"
"""Name of the HTTP port's listener in logs and metrics."""
HTTP_SETTINGS = {
    "ssl.keystore.location": "http.certificate.location",
    "ssl.truststore.location": "http.client.ca.location",
}
"""The settings of the HTTP port by those of a listener that they stand for."""


def http_settings(config: BrokerConfig) -> TlsSettings:
    """Return the TLS settings of the HTTP port. Client certificates are optional: health pages need none."""
    client_auth = "none" if config.http_client_ca_location is None else "requested"
    return TlsSettings(
        keystore_location=config.http_certificate_location,
        truststore_location=config.http_client_ca_location,
        client_auth=client_auth,
    )


def load_http(config: BrokerConfig) -> ListenerTls | None:
    """Load the certificates of the HTTP port; None without TLS. Raises `StartError`."""
    if config.http_certificate_location is None:
        if config.http_client_ca_location is not None:
            raise StartError("http.client.ca.location is set without http.certificate.location; set both")
        return None
    try:
        return ListenerTls.load(ListenerSecurity(HTTP, SecurityProtocol.SSL, http_settings(config)))
    except InvalidSetting as e:
        text = str(e)
        for setting, own in HTTP_SETTINGS.items():
            text = text.replace(setting, own)
        raise StartError(text) from e


def load_listeners(security: Iterable[ListenerSecurity]) -> dict[str, ListenerTls]:
    """Load the certificates of the listeners with TLS. Raises `StartError`."""
    try:
        return {each.listener: ListenerTls.load(each) for each in security if each.tls is not None}
    except InvalidSetting as e:
        raise StartError(str(e)) from e


def check_brokers_trust(listener: ListenerTls) -> None:
    """Raise `StartError` if brokers with this broker's trust store would refuse its certificate on the listener between
    brokers. Without client certificates brokers are known by other means."""
    if listener.settings.client_auth != "required":
        return
    try:
        check_own_trust(listener.settings, listener.sources)
    except InvalidSetting as e:
        raise StartError(f'listener "{listener.listener}": {e}') from e


def start_reloader(
    config: BrokerConfig, listeners: Iterable[ListenerTls], executor: Executor | None
) -> CertificateReloader:
    """Start to reload certificates when their files or the settings change."""

    def settings_of(listener: str) -> TlsSettings:
        if listener == HTTP:
            return http_settings(config)
        found = listener_security(config, listener).tls
        assert found is not None, "the protocol of a listener does not change"
        return found

    reloader = CertificateReloader(list(listeners), settings_of, executor)
    config.subscribe(reloader.on_settings_changed)
    reloader.start()
    return reloader
