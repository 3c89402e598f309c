"""The security settings of client properties, by the names of Kafka's Java clients and of librdkafka.

`security.Security.from_properties` makes a `Security` of the result. File names are checked here, so that errors name
the property; what the files contain is checked when a connection is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.config.addresses import InvalidAddress, parse_bootstrap, quoted
from penstock.config.definition import InvalidSetting
from penstock.config.jaas import LoginModule, parse_jaas
from penstock.config.listener_security import SecurityProtocol
from penstock.config.properties import InvalidProperties, Property

Properties = Mapping[str, Property]

PEM_MARK = "-----BEGIN"
MAX_PEM_BYTES = 1 << 20
BOOTSTRAP_NAMES = ("bootstrap.servers", "metadata.broker.list")
MECHANISM_NAMES = ("sasl.mechanism", "sasl.mechanisms")
MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
"""Mechanisms by login module."""
MECHANISMS = tuple(mechanism for names in MODULES.values() for mechanism in names)
CA_FILES = ("ssl.ca.location", "ssl.truststore.location")
CA_TEXTS = ("ssl.ca.pem", "ssl.truststore.certificates")
CERTIFICATE_FILES = ("ssl.certificate.location", "ssl.keystore.location")
CERTIFICATE_TEXTS = ("ssl.certificate.pem", "ssl.keystore.certificate.chain")
KEY_TEXTS = ("ssl.key.pem", "ssl.keystore.key")
STORE_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
HOST_CHECK = "ssl.endpoint.identification.algorithm"
VERIFICATION = "enable.ssl.certificate.verification"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_IDS = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
CLIENT_SECRETS = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
TOKEN_NAMES = (
    ENDPOINT, *CLIENT_IDS, *CLIENT_SECRETS, "sasl.oauthbearer.scope", "sasl.oauthbearer.method",
    "https.ca.location",
)  # fmt: skip
"""The names of OAUTHBEARER. `sasl.oauthbearer.method` is not needed."""
OTHERS = (
    "security.protocol", "sasl.username", "sasl.password", "sasl.jaas.config", "ssl.key.location", "ssl.key.password",
    "ssl.keystore.password", "ssl.truststore.password", HOST_CHECK, VERIFICATION,
)  # fmt: skip
KNOWN = frozenset(
    {
        *BOOTSTRAP_NAMES, *MECHANISM_NAMES, *CA_FILES, *CA_TEXTS, *CERTIFICATE_FILES, *CERTIFICATE_TEXTS, *KEY_TEXTS,
        *STORE_TYPES, *TOKEN_NAMES, *OTHERS,
    }
)  # fmt: skip
"""The names that are used; others are ignored."""


@dataclass(frozen=True, slots=True)
class TlsProperties:
    """The TLS settings. Texts are PEM. Each of authorities, certificate and key is a file or a text, or None."""

    ca_file: str | None = None
    ca_data: str | None = None
    certificate_file: str | None = None
    certificate_data: str | None = None
    key_file: str | None = None
    key_data: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class TokenProperties:
    """Where tokens come from: a file, or an https token endpoint for a client id and its secret."""

    file: str | None
    endpoint: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class SaslProperties:
    """Mechanism and credentials: a user name and a password, or `tokens` for OAUTHBEARER."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenProperties | None = None


@dataclass(frozen=True, slots=True)
class SecurityProperties:
    """The resolved properties. `ignored` are the names that are not used, in order."""

    bootstrap: str | None
    tls: TlsProperties | None
    sasl: SaslProperties | None
    ignored: tuple[str, ...] = ()


def resolve(properties: Sequence[Property]) -> SecurityProperties:
    """Validate and resolve properties. Raises `InvalidProperties`."""
    found = {p.name: p for p in properties}
    protocol = protocol_of(found)
    return SecurityProperties(
        bootstrap_of(found, protocol),
        tls_of(found) if protocol.has_tls else None,
        sasl_of(found) if protocol.has_sasl else None,
        tuple(p.name for p in properties if p.name not in KNOWN),
    )


def protocol_of(found: Properties) -> SecurityProtocol:
    """Return `security.protocol`, in upper or lower case; PLAINTEXT, Kafka's default, if it is not set."""
    given = first(found, ("security.protocol",))
    if given is None:
        return SecurityProtocol.PLAINTEXT
    try:
        return SecurityProtocol(given.value.strip().upper())
    except ValueError:
        raise invalid(
            given, f"it is not a protocol; use one of {', '.join(p.value for p in SecurityProtocol)}"
        ) from None


def bootstrap_of(found: Properties, protocol: SecurityProtocol) -> str | None:
    """Return the bootstrap servers."""
    given = first(found, BOOTSTRAP_NAMES)
    if given is None:
        return None
    try:
        parse_bootstrap(given.value, has_tls=protocol.has_tls, has_sasl=protocol.has_sasl)
    except InvalidAddress as e:
        raise InvalidProperties(f"{where(given)}{given.name}: {e}") from None
    return given.value


def tls_of(found: Properties) -> TlsProperties:
    """Return the TLS settings."""
    for name in STORE_TYPES:
        check_store_type(found.get(name))
    check_verification(found.get(VERIFICATION))
    ca_data, certificate_data, key_data = (
        pem_text(first(found, names)) for names in (CA_TEXTS, CERTIFICATE_TEXTS, KEY_TEXTS)
    )
    ca_file = None if ca_data else pem_file(first(found, CA_FILES))
    certificate_file = None if certificate_data else pem_file(first(found, CERTIFICATE_FILES))
    key_file = None if key_data else pem_file(first(found, ("ssl.key.location",)))
    key_password = first(found, ("ssl.key.password",))
    if not (certificate_file or certificate_data) and (given := first(found, (*KEY_TEXTS, "ssl.key.location"))):
        raise invalid(given, "a private key needs a certificate; set ssl.keystore.certificate.chain as well", True)
    if certificate_data and not (key_data or key_file):
        given = first(found, CERTIFICATE_TEXTS)
        assert given is not None, "the text of a certificate comes from a property"
        raise invalid(given, "the certificate needs its private key; set ssl.keystore.key as well", True)
    return TlsProperties(
        ca_file, ca_data, certificate_file, certificate_data, key_file, key_data,
        key_password.value if key_password else None, checks_hostname(found.get(HOST_CHECK)),
    )  # fmt: skip


def check_store_type(given: Property | None) -> None:
    """Raise `InvalidProperties` for a keystore or truststore that is not PEM."""
    if given is None or given.value.strip().upper() in ("", "PEM"):
        return
    if given.value.strip().upper() == "PKCS12":
        raise invalid(given, "only PEM is supported; convert it with `openssl pkcs12 -in STORE -out FILE.pem -nodes`")
    raise invalid(
        given,
        "only PEM is supported; convert it with `keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12"
        " -deststoretype PKCS12`, then `openssl pkcs12 -in STORE.p12 -out FILE.pem -nodes`",
    )


def check_verification(given: Property | None) -> None:
    """Raise `InvalidProperties` if the verification of certificates is turned off, which is not supported."""
    if given is not None and given.value.strip().lower() != "true":
        raise invalid(given, "certificates are always verified; set ssl.ca.location to the CA of the brokers")


def checks_hostname(given: Property | None) -> bool:
    """Return whether host names are verified: by default, unless the value is empty (Java) or `none` (librdkafka)."""
    value = "https" if given is None else given.value.strip().lower()
    if value not in ("https", "", "none"):
        assert given is not None, "the default is valid"
        raise invalid(given, 'it is not an algorithm; use "https", or "none" to accept any host name')
    return value == "https"


def pem_text(given: Property | None) -> str | None:
    """Return PEM text."""
    if given is None:
        return None
    if PEM_MARK not in given.value:
        raise invalid(given, f'the text has no "{PEM_MARK}"; use PEM with "\\n" at the end of each line', True)
    return given.value


def pem_file(given: Property | None) -> str | None:
    """Return the path of a PEM file."""
    if given is None:
        return None
    path = given.value.strip()
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_PEM_BYTES)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise invalid(given, f"the file cannot be read: {reason}; set the path of a readable PEM file") from None
    if PEM_MARK.encode() not in content:
        raise invalid(given, "the file is not PEM; convert it with `openssl x509` or `openssl pkcs12`")
    return path


def sasl_of(found: Properties) -> SaslProperties:
    """Return mechanism and credentials: of the login module, or `sasl.username` and `sasl.password`."""
    chosen = first(found, MECHANISM_NAMES)
    if chosen is None:
        raise InvalidProperties(
            f"{where(found['security.protocol'])}sasl.mechanism is missing; set it to one of {', '.join(MECHANISMS)}"
        )
    mechanism = chosen.value.strip().upper()
    if mechanism not in MECHANISMS:
        raise invalid(chosen, f"it is not a supported mechanism; use one of {', '.join(MECHANISMS)}")
    module = first(found, ("sasl.jaas.config",))
    options: Mapping[str, str] = {} if module is None else module_of(module, mechanism).options
    if mechanism == "OAUTHBEARER":
        return SaslProperties(mechanism, tokens=tokens_of(found, chosen, options))
    username = text(found, "sasl.username") or options.get("username", "")
    password = text(found, "sasl.password") or options.get("password", "")
    check_credentials(chosen, username, password)
    return SaslProperties(mechanism, username, password)


def tokens_of(found: Properties, chosen: Property, options: Mapping[str, str]) -> TokenProperties:
    """Return where the tokens of OAUTHBEARER come from."""
    endpoint = first(found, (ENDPOINT,))
    if endpoint is None:
        raise InvalidProperties(
            f"{where(chosen)}{ENDPOINT} is missing for OAUTHBEARER; set it to https://HOST/PATH or file:///PATH"
        )
    url = endpoint.value.strip()
    parts = split_url(endpoint, url)
    if parts.scheme == "file":
        return TokenProperties(unquote(parts.path), url)
    client_id, secret = first(found, CLIENT_IDS), first(found, CLIENT_SECRETS)
    scope = text(found, "sasl.oauthbearer.scope") or options.get("scope", "")
    values = (
        client_id.value if client_id else options.get("clientId", ""),
        secret.value if secret else options.get("clientSecret", ""),
    )
    for name, value in zip((CLIENT_IDS[0], CLIENT_SECRETS[0]), values, strict=True):
        if not value:
            raise InvalidProperties(f"{where(chosen)}{name} is missing for OAUTHBEARER; set it")
    ca_file = pem_file(first(found, ("https.ca.location",)))
    return TokenProperties(None, url, *values, scope or None, ca_file)


def split_url(given: Property, url: str) -> SplitResult:
    """Return the parts of a token endpoint's URL."""
    try:
        parts = urlsplit(url)
        is_valid = (parts.scheme == "https" and bool(parts.hostname) and not parts.username) or (
            parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise invalid(given, "it is not a token endpoint; use https://HOST/PATH, or file:///PATH for a token's file")
    return parts


def module_of(given: Property, mechanism: str) -> LoginModule:
    """Return the login module. Raises `InvalidProperties` if it does not fit the mechanism."""
    try:
        module = parse_jaas(given.value, given.name)
    except InvalidSetting as e:
        raise InvalidProperties(f"{where(given)}{e}") from None
    name = module.name.rpartition(".")[2]
    if mechanism not in MODULES.get(name, ()):
        fitting = next(module for module, mechanisms in MODULES.items() if mechanism in mechanisms)
        raise invalid(given, f"login module {quoted(name)} is not for {mechanism}; use {fitting}", True)
    return module


def check_credentials(chosen: Property, username: str, password: str) -> None:
    """Raise `InvalidProperties` if user name or password is missing."""
    for name, value in (("sasl.username", username), ("sasl.password", password)):
        if not value:
            raise InvalidProperties(
                f"{where(chosen)}{name} is missing for {chosen.value.strip()}; set it, or sasl.jaas.config"
            )


def first(found: Properties, names: Sequence[str]) -> Property | None:
    """Return the first of these properties that has a value."""
    return next((p for name in names if (p := found.get(name)) is not None and p.value.strip()), None)


def text(found: Properties, name: str) -> str:
    """Return a property's value; empty if it is not set."""
    return found[name].value if name in found else ""


def where(given: Property) -> str:
    """Return the start of an error message: the place, if the property has one."""
    return f"{given.place}: " if given.place else ""


def invalid(given: Property, why: str, is_secret: bool = False) -> InvalidProperties:
    """Return the error for a property; a secret or long value is not quoted."""
    value = "" if is_secret else f" {quoted(given.value)}"
    return InvalidProperties(f"{where(given)}invalid {given.name}{value}: {why}")
