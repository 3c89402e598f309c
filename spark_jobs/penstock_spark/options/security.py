"""Parses TLS and SASL options: `kafka.security.protocol`, `kafka.ssl.*` and `kafka.sasl.*`. Called by `kafka`.

Java supports three formats of key stores; this format supports PEM. The other two are rejected with the command that
converts them.
"""

from __future__ import annotations

from penstock.config.addresses import quoted
from penstock_spark.model.connection import Sasl, Tls
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.jaas import user_and_password
from penstock_spark.options.text import OptionReader

PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
"""By name: whether it uses TLS, whether it uses SASL."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PEM_ENDINGS = (".pem", ".crt", ".cer", ".key")
_TLS_OPTIONS = (
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.type",
    "kafka.ssl.truststore.password",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.keystore.password",
    "kafka.ssl.key.password",
    "kafka.ssl.endpoint.identification.algorithm",
)
_SASL_OPTIONS = ("kafka.sasl.mechanism", "kafka.sasl.jaas.config")


def pop_security(options: OptionReader) -> tuple[Tls | None, Sasl | None]:
    """Return the TLS and SASL settings. Raises `InvalidOption`."""
    name = (options.pop_text("kafka.security.protocol") or "PLAINTEXT").upper()
    if name not in PROTOCOLS:
        raise InvalidOption(
            f'option "kafka.security.protocol": invalid value {quoted(name)}; use {", ".join(PROTOCOLS)}'
        )
    encrypted, authenticated = PROTOCOLS[name]
    if not encrypted:
        _warn_ignored(options, name, _TLS_OPTIONS)
    if not authenticated:
        _warn_ignored(options, name, _SASL_OPTIONS)
    return _pop_tls(options) if encrypted else None, _pop_sasl(options) if authenticated else None


def _warn_ignored(options: OptionReader, protocol: str, names: tuple[str, ...]) -> None:
    for name in names:
        if options.pop(name) is not None:
            options.warn(f'option "{name}" is ignored with the security protocol {protocol}')


def _pop_tls(options: OptionReader) -> Tls:
    ca_file = _pop_pem(options, "truststore")
    if options.pop("kafka.ssl.truststore.password") is not None:
        options.warn('option "kafka.ssl.truststore.password" is ignored: PEM certificates are not encrypted')
    key_file = _pop_pem(options, "keystore")
    store_password = options.pop("kafka.ssl.keystore.password")
    key_password = options.pop("kafka.ssl.key.password") or store_password
    algorithm = options.pop("kafka.ssl.endpoint.identification.algorithm")
    if algorithm is not None and algorithm.strip().lower() not in ("", "https"):
        raise InvalidOption(
            f'option "kafka.ssl.endpoint.identification.algorithm": invalid value {quoted(algorithm)}; use "https", or '
            "leave it empty for no host name check"
        )
    return Tls(
        ca_file=ca_file,
        certificate_file=key_file,
        key_file=key_file,
        key_password=key_password,
        check_hostname=algorithm is None or bool(algorithm.strip()),
    )


def _pop_pem(options: OptionReader, store: str) -> str | None:
    location = options.pop_text(f"kafka.ssl.{store}.location")
    kind = options.pop_text(f"kafka.ssl.{store}.type")
    if location is None:
        return None
    if kind is None and location.lower().endswith(_PEM_ENDINGS):
        kind = "PEM"
    if kind is None or kind.upper() != "PEM":
        convert = (
            f"keytool -exportcert -rfc -keystore {location} -alias ALIAS -file ca.pem"
            if store == "truststore"
            else f"openssl pkcs12 -in {location} -out client.pem; before that, from JKS, keytool -importkeystore"
        )
        raise InvalidOption(
            f'option "kafka.ssl.{store}.location": unsupported store type {kind or "JKS (the default)"}; convert it to '
            f'PEM ({convert}) and set "kafka.ssl.{store}.type" to "PEM"'
        )
    return location


def _pop_sasl(options: OptionReader) -> Sasl:
    mechanism = (options.pop_text("kafka.sasl.mechanism") or "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        raise InvalidOption(
            f'option "kafka.sasl.mechanism": unsupported mechanism {quoted(mechanism)}'
            f"{' (its default)' if mechanism == 'GSSAPI' else ''}; use {', '.join(MECHANISMS)}"
        )
    text = options.pop_text("kafka.sasl.jaas.config")
    if text is None:
        raise InvalidOption(
            f'option "kafka.sasl.jaas.config" is missing: {mechanism} needs its user name and password; set it'
        )
    user, password = user_and_password(text, mechanism, "kafka.sasl.jaas.config")
    return Sasl(mechanism, user, password)
