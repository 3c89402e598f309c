"""The security of one listener: protocol, TLS and SASL, as the server and the connections to other brokers use it.

`node` resolves it at startup, before a port opens, and again when dynamic settings change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.config.addresses import quoted
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting, Value
from penstock.config.security_settings import (
    ENABLED_MECHANISMS,
    INTER_BROKER_LISTENER,
    INTER_BROKER_MECHANISM,
    INTER_BROKER_PROTOCOL,
    PROTOCOL_MAP,
    SECURITY_SETTINGS,
    PrefixedName,
    SecurityProtocol,
    parse_protocol_map,
    split_prefix,
)

__all__ = [
    "ListenerSecurity",
    "SecurityProtocol",
    "TlsSettings",
    "check_listener_names",
    "inter_broker_listener",
    "inter_broker_mechanism",
    "listener_protocol",
    "listener_security",
]

JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""First bytes of JKS and JCEKS files."""
DER_SEQUENCE = b"\x30"
"""First byte of a PKCS#12 file."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The `ssl.*` settings of a listener, by Kafka's names with underscores; texts are PEM, locations are files.

    A location may be a directory too: that of a key store has `tls.crt` and `tls.key`, that of a trust store `ca.crt`.
    """

    keystore_type: str = "PEM"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "PEM"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    """`none`, `requested` or `required`."""
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    principal_mapping_rules: str = "DEFAULT"
    allow_dn_changes: bool = False
    allow_san_changes: bool = False
    checks_host_names: bool = True
    """Whether a broker checks the host name in the certificate of another."""

    @property
    def has_trust(self) -> bool:
        """Whether there are CA certificates."""
        return self.truststore_location is not None or self.truststore_certificates is not None


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What a listener asks of its clients. `tls` is set if the protocol has TLS, `mechanisms` if it has SASL."""

    listener: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    mechanisms: tuple[str, ...] = ()


class ListenerValues:
    """Values of the settings of one listener: that with its prefix, else that of the broker, else the default."""

    def __init__(self, config: BrokerConfig, listener: str) -> None:
        self.config, self.listener = config, listener

    def name(self, setting: str) -> str:
        """Return the name under which the value is set: with the prefix if it is set there."""
        prefixed = self.prefixed(setting)
        return setting if self.config.text(prefixed) is None else prefixed

    def prefixed(self, setting: str) -> str:
        """Return the setting's name with the prefix of the listener."""
        return str(PrefixedName(self.listener, None, setting))

    def value(self, setting: str) -> Value | None:
        """Return the typed value; None if it is not set and has no default."""
        known = SECURITY_SETTINGS[setting]
        text = self.config.text(self.name(setting))
        text = known.default if text is None else text
        return None if text is None else known.parse(text)

    def text(self, setting: str) -> str | None:
        """Return a text; None if it is not set or empty."""
        value = self.value(setting)
        return None if value is None or value == "" else str(value)

    def words(self, setting: str) -> tuple[str, ...]:
        """Return a list."""
        value = self.value(setting)
        return value if isinstance(value, tuple) else ()


def listener_protocol(config: BrokerConfig, listener: str) -> SecurityProtocol:
    """Return the security protocol of a listener. Raises `InvalidSetting` if the map lacks it."""
    text = config.text(PROTOCOL_MAP)
    protocols = parse_protocol_map(SECURITY_SETTINGS[PROTOCOL_MAP].default or "" if text is None else text)
    if listener not in protocols:
        raise InvalidSetting(
            f'listener "{listener}" has no security protocol: {PROTOCOL_MAP} does not name it; add'
            f" {listener}:PLAINTEXT, {listener}:SSL, {listener}:SASL_PLAINTEXT or {listener}:SASL_SSL"
        )
    return protocols[listener]


def listener_security(config: BrokerConfig, listener: str) -> ListenerSecurity:
    """Return the security of a listener (upper case). Raises `InvalidSetting`, which names the setting and the fix.

    Reads the first bytes of the stores to tell their formats; their content is checked when it is loaded.
    """
    protocol = listener_protocol(config, listener)
    values = ListenerValues(config, listener)
    mechanisms = values.words(ENABLED_MECHANISMS) if protocol.has_sasl else ()
    if protocol.has_sasl and not mechanisms:
        raise InvalidSetting(
            f'listener "{listener}" uses {protocol.value}, but {ENABLED_MECHANISMS} is empty; set it to one or more of'
            f" {', '.join(SECURITY_SETTINGS[ENABLED_MECHANISMS].allowed)}"
        )
    return ListenerSecurity(
        listener, protocol, tls_settings(values, protocol) if protocol.has_tls else None, mechanisms
    )


def tls_settings(values: ListenerValues, protocol: SecurityProtocol) -> TlsSettings:
    """Return the TLS settings of a listener. Raises `InvalidSetting`."""
    check_key_store(values)
    check_trust_store(values)
    settings = TlsSettings(
        keystore_type=store_type(values, "ssl.keystore"),
        keystore_location=values.text("ssl.keystore.location"),
        keystore_password=values.text("ssl.keystore.password"),
        keystore_certificate_chain=values.text("ssl.keystore.certificate.chain"),
        keystore_key=values.text("ssl.keystore.key"),
        key_password=values.text("ssl.key.password"),
        truststore_type=store_type(values, "ssl.truststore"),
        truststore_location=values.text("ssl.truststore.location"),
        truststore_password=values.text("ssl.truststore.password"),
        truststore_certificates=values.text("ssl.truststore.certificates"),
        client_auth=client_auth(values, protocol),
        enabled_protocols=values.words("ssl.enabled.protocols") or ("TLSv1.2", "TLSv1.3"),
        cipher_suites=values.words("ssl.cipher.suites"),
        principal_mapping_rules=values.text("ssl.principal.mapping.rules") or "DEFAULT",
        allow_dn_changes=bool(values.value("ssl.allow.dn.changes")),
        allow_san_changes=bool(values.value("ssl.allow.san.changes")),
        checks_host_names=values.text("ssl.endpoint.identification.algorithm") is not None,
    )
    if settings.client_auth != "none" and not settings.has_trust:
        raise InvalidSetting(
            f'{values.name("ssl.client.auth")} of listener "{values.listener}" is {settings.client_auth}, but there'
            " are no CA certificates to check clients with; set ssl.truststore.location or ssl.truststore.certificates"
        )
    return settings


def client_auth(values: ListenerValues, protocol: SecurityProtocol) -> str:
    """Return `ssl.client.auth`; SASL_SSL listeners ignore a value without their prefix (KIP-684)."""
    if protocol is SecurityProtocol.SASL_SSL and values.config.text(values.prefixed("ssl.client.auth")) is None:
        return "none"
    return values.text("ssl.client.auth") or "none"


def check_key_store(values: ListenerValues) -> None:
    """Raise `InvalidSetting` unless the key is given as a file or as texts."""
    location, chain, key = (values.text(f"ssl.keystore.{part}") for part in ("location", "certificate.chain", "key"))
    if location is not None and (chain is not None or key is not None):
        raise InvalidSetting(
            f'listener "{values.listener}" has both ssl.keystore.location and ssl.keystore.certificate.chain or'
            " ssl.keystore.key; set the file or the texts"
        )
    if location is None and chain is None and key is None:
        raise InvalidSetting(
            f'listener "{values.listener}" uses TLS, but ssl.keystore.location is not set; set it to a PEM file with'
            " the private key and the certificate chain, to a PKCS#12 file, or to a directory with tls.crt and tls.key"
        )
    if location is None and (chain is None or key is None):
        missing = "ssl.keystore.certificate.chain" if chain is None else "ssl.keystore.key"
        raise InvalidSetting(f'listener "{values.listener}" has an incomplete key store: {missing} is not set; set it')


def check_trust_store(values: ListenerValues) -> None:
    """Raise `InvalidSetting` if the CA certificates are given twice."""
    if values.text("ssl.truststore.location") and values.text("ssl.truststore.certificates"):
        raise InvalidSetting(
            f'listener "{values.listener}" has both ssl.truststore.location and ssl.truststore.certificates; set one'
        )


def store_type(values: ListenerValues, store: str) -> str:
    """Return PEM or PKCS12: the configured type, which the file must have, else the file's. Raises `InvalidSetting`."""
    setting = f"{store}.location"
    chosen, location = values.text(f"{store}.type"), values.text(setting)
    if chosen == "JKS":
        raise java_store(values.name(f"{store}.type"), location or "FILE.jks", store)
    if location is None:
        if chosen == "PKCS12" and values.text(f"{store}.{'key' if store.endswith('keystore') else 'certificates'}"):
            raise InvalidSetting(
                f"{values.name(f'{store}.type')} is PKCS12, but the {store} is given as PEM text; remove the type"
            )
        return "PEM"
    found = file_type(values.name(setting), location)
    if found == "JKS":
        raise java_store(values.name(setting), location, store)
    if chosen is not None and chosen != found:
        raise InvalidSetting(
            f"{values.name(f'{store}.type')} is {chosen}, but {setting} {quoted(location)} is {found}; remove the type"
        )
    if found == "PEM" and values.text(f"{store}.password") is not None:
        raise InvalidSetting(
            f"{values.name(f'{store}.password')} is set, but {setting} {quoted(location)} is PEM, which has none;"
            " remove it, or use ssl.key.password for an encrypted key"
        )
    return found


def file_type(setting: str, location: str) -> str:
    """Return the format of a store's file by its first bytes. Raises `InvalidSetting` if it cannot be read."""
    if os.path.isdir(location):
        return "PEM"
    try:
        with open(location, "rb") as file:
            head = file.read(4)
    except (OSError, ValueError) as e:  # ValueError: a null character
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise InvalidSetting(
            f"cannot read {setting} {quoted(location)}: {why}; set it to a file that the broker can read"
        ) from None
    return "JKS" if head in JAVA_STORES else "PKCS12" if head.startswith(DER_SEQUENCE) else "PEM"


def java_store(setting: str, location: str, store: str) -> InvalidSetting:
    """Return the error for a JKS file, with the command that converts it."""
    return InvalidSetting(
        f"cannot use {setting}: JKS is not supported; convert it with `keytool -importkeystore -srckeystore {location}"
        f" -destkeystore {location.removesuffix('.jks')}.p12 -deststoretype PKCS12`, and set {store}.location to the"
        f" new file and {store}.type to PKCS12"
    )


def check_listener_names(config: BrokerConfig, listeners: Sequence[str]) -> None:
    """Raise `InvalidSetting` if the prefix of a static setting names no listener."""
    for texts in config.source_texts.values():
        for name in texts:
            prefixed = split_prefix(name)
            if prefixed is not None and prefixed.listener not in listeners:
                raise InvalidSetting(
                    f'invalid setting {quoted(name)}: listener "{prefixed.listener}" does not exist; use one of'
                    f" {', '.join(listeners)}, in lower case"
                )


def inter_broker_listener(config: BrokerConfig, listeners: Sequence[str]) -> str:
    """Return the name of the listener on which brokers connect to each other. Raises `InvalidSetting`.

    It is `inter.broker.listener.name`, or the one named by `security.inter.broker.protocol`, else the first.
    """
    name, protocol = config.text(INTER_BROKER_LISTENER), config.text(INTER_BROKER_PROTOCOL)
    if name is not None and protocol is not None:
        raise InvalidSetting(f"{INTER_BROKER_LISTENER} and {INTER_BROKER_PROTOCOL} are both set; set one of them")
    chosen = (name or protocol or listeners[0]).strip().upper()
    if chosen not in listeners:
        setting = INTER_BROKER_PROTOCOL if name is None else INTER_BROKER_LISTENER
        raise InvalidSetting(
            f'invalid {setting}: listener "{chosen}" does not exist; set {INTER_BROKER_LISTENER} to one of'
            f" {', '.join(listeners)}"
        )
    return chosen


def inter_broker_mechanism(config: BrokerConfig, security: ListenerSecurity) -> str | None:
    """Return the SASL mechanism of connections to other brokers; None without SASL. Raises `InvalidSetting`."""
    if not security.protocol.has_sasl:
        return None
    mechanism = config.text(INTER_BROKER_MECHANISM)
    if mechanism is None or mechanism.strip() not in security.mechanisms:
        raise InvalidSetting(
            f'brokers cannot authenticate on listener "{security.listener}": {INTER_BROKER_MECHANISM} is'
            f" {'not set' if mechanism is None else quoted(mechanism)}; set it to one of {ENABLED_MECHANISMS}:"
            f" {', '.join(security.mechanisms)}"
        )
    return mechanism.strip()
