"""TLS and SASL out of `kafka.security.protocol`, `kafka.ssl.*` and `kafka.sasl.*`. Called by `kafka`.

Java reads key stores of three formats; here they are PEM, as everything outside of Java has them. The other two are
refused with the command that converts them.
"""

from __future__ import annotations

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
"""By name: whether it has TLS, whether it has SASL."""
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


def take_security(options: OptionReader) -> tuple[Tls | None, Sasl | None]:
    name = (options.take_text("kafka.security.protocol") or "PLAINTEXT").upper()
    if name not in PROTOCOLS:
        raise InvalidOption(f"option 'kafka.security.protocol' is one of {', '.join(PROTOCOLS)}, not {name!r}")
    encrypted, authenticated = PROTOCOLS[name]
    if not encrypted:
        _warn_of(options, name, _TLS_OPTIONS)
    if not authenticated:
        _warn_of(options, name, _SASL_OPTIONS)
    return _take_tls(options) if encrypted else None, _take_sasl(options) if authenticated else None


def _warn_of(options: OptionReader, protocol: str, names: tuple[str, ...]) -> None:
    for name in names:
        if options.take(name) is not None:
            options.warn(f"option {name!r} has no meaning with the security protocol {protocol}")


def _take_tls(options: OptionReader) -> Tls:
    ca_file = _take_pem(options, "truststore")
    if options.take("kafka.ssl.truststore.password") is not None:
        options.warn("option 'kafka.ssl.truststore.password' has no meaning: certificates in PEM are not encrypted")
    key_file = _take_pem(options, "keystore")
    store_password = options.take("kafka.ssl.keystore.password")
    key_password = options.take("kafka.ssl.key.password") or store_password
    algorithm = options.take("kafka.ssl.endpoint.identification.algorithm")
    if algorithm is not None and algorithm.strip().lower() not in ("", "https"):
        raise InvalidOption(
            "option 'kafka.ssl.endpoint.identification.algorithm' is https, or empty for no check of the host's name"
        )
    return Tls(
        ca_file=ca_file,
        certificate_file=key_file,
        key_file=key_file,
        key_password=key_password,
        check_hostname=algorithm is None or bool(algorithm.strip()),
    )


def _take_pem(options: OptionReader, store: str) -> str | None:
    location = options.take_text(f"kafka.ssl.{store}.location")
    kind = options.take_text(f"kafka.ssl.{store}.type")
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
            f"option 'kafka.ssl.{store}.location' is a store of type {kind or 'JKS (the default)'}; PEM is supported. "
            f"Convert it ({convert}) and set 'kafka.ssl.{store}.type' to PEM"
        )
    return location


def _take_sasl(options: OptionReader) -> Sasl:
    mechanism = (options.take_text("kafka.sasl.mechanism") or "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        raise InvalidOption(
            f"option 'kafka.sasl.mechanism' is one of {', '.join(MECHANISMS)}, not {mechanism}"
            f"{' (its default)' if mechanism == 'GSSAPI' else ''}"
        )
    text = options.take_text("kafka.sasl.jaas.config")
    if text is None:
        raise InvalidOption(
            f"option 'kafka.sasl.jaas.config' is needed for {mechanism}: it holds the user's name and password"
        )
    user, password = user_and_password(text, mechanism, "kafka.sasl.jaas.config")
    return Sasl(mechanism, user, password)
