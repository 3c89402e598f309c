"""The settings of TLS and authentication by Kafka's names, of the broker and of each listener.

`listener.name.<listener>.<setting>`, with the listener's name in lower case, applies to one listener and takes
precedence over `<setting>`; `listener.name.<listener>.<mechanism>.<setting>` applies to one SASL mechanism of it.
`broker` merges the table into the broker's settings; `listener_security` resolves the settings of a listener.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting, Setting, SettingType, define
from penstock.config.jaas import parse_jaas
from penstock.config.listeners import LISTENER_NAME

LIST, PASSWORD = SettingType.LIST, SettingType.PASSWORD
MAX_PEM_CHARS = 1 << 16
MAX_RULES_CHARS = 1 << 14
MAX_JAAS_CHARS = 1 << 16
MAX_MS = (1 << 31) - 1
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
STORE_TYPES = ("PEM", "PKCS12", "JKS")

PROTOCOL_MAP = "listener.security.protocol.map"
INTER_BROKER_LISTENER = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"
INTER_BROKER_MECHANISM = "sasl.mechanism.inter.broker.protocol"
ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
MAX_RECEIVE_SIZE = "sasl.server.max.receive.size"
FAILURE_DELAY = "connection.failed.authentication.delay.ms"
AUTHENTICATION_TIMEOUT = "connection.authentication.timeout.ms"
ALLOWED_URLS = "sasl.oauthbearer.allowed.urls"
LISTENER_PREFIX = "listener.name."
PREFIX_NAME = re.compile(r"[a-z0-9_]{1,64}")


class SecurityProtocol(Enum):
    """The values of `listener.security.protocol.map`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


PROTOCOLS = tuple(protocol.value for protocol in SecurityProtocol)
DEFAULT_PROTOCOL_MAP = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)


def parse_protocol_map(text: str) -> Mapping[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL,...`; names become upper case. Raises `InvalidSetting`."""
    found: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not LISTENER_NAME.fullmatch(name) or protocol not in PROTOCOLS:
            raise InvalidSetting(
                f"invalid entry {quoted(entry)} in {PROTOCOL_MAP}: it must be LISTENER:PROTOCOL with one of"
                f" {', '.join(PROTOCOLS)}"
            )
        if name in found:
            raise InvalidSetting(f'invalid {PROTOCOL_MAP}: listener "{name}" is mapped twice; keep one entry')
        found[name] = SecurityProtocol(protocol)
    return found


SETTINGS = (
    define(
        PROTOCOL_MAP, DEFAULT_PROTOCOL_MAP,
        "Security protocol of each listener, as NAME:PROTOCOL,... with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A"
        " listener with another name than these needs an entry.",
        convert=parse_protocol_map,
    ),
    define(
        INTER_BROKER_LISTENER, None,
        "Listener on which brokers connect to each other. Default: the listener named by"
        " security.inter.broker.protocol, else the first.",
        convert=lambda name: check_listener_name(INTER_BROKER_LISTENER, name),
    ),
    define(
        INTER_BROKER_PROTOCOL, None,
        "Name of the listener on which brokers connect to each other, if it is that of a protocol. Set this or"
        " inter.broker.listener.name, not both.",
        allowed=PROTOCOLS,
    ),
    define(
        INTER_BROKER_MECHANISM, None,
        "SASL mechanism with which brokers authenticate to each other, if that listener has SASL.", allowed=MECHANISMS,
    ),
    define(
        ENABLED_MECHANISMS, "", "SASL mechanisms that clients may use; a listener with SASL needs at least one.",
        kind=LIST, allowed=MECHANISMS,
    ),
    define(
        "ssl.keystore.type", None,
        "Format of the key store. JKS is not supported. Default: that of the file, PEM or PKCS12; Kafka's is JKS.",
        allowed=STORE_TYPES, dynamic=True,
    ),
    define(
        "ssl.keystore.location", None,
        "File with the private key and the certificate chain, PEM or PKCS#12, or a directory with tls.crt and tls.key,"
        " such as a mounted Kubernetes Secret. Reloaded when its content changes.",
        dynamic=True,
    ),
    define("ssl.keystore.password", None, "Password of a PKCS#12 key store.", kind=PASSWORD, dynamic=True),
    define(
        "ssl.keystore.certificate.chain", None,
        "Certificate chain as PEM text, the broker's certificate first; replaces ssl.keystore.location.",
        kind=PASSWORD, max_chars=MAX_PEM_CHARS, dynamic=True,
    ),
    define(
        "ssl.keystore.key", None, "Private key as PEM text (PKCS#8), for ssl.keystore.certificate.chain.",
        kind=PASSWORD, max_chars=MAX_PEM_CHARS, dynamic=True,
    ),
    define("ssl.key.password", None, "Password of an encrypted private key.", kind=PASSWORD, dynamic=True),
    define(
        "ssl.truststore.type", None,
        "Format of the trust store. JKS is not supported. Default: that of the file, PEM or PKCS12; Kafka's is JKS.",
        allowed=STORE_TYPES, dynamic=True,
    ),
    define(
        "ssl.truststore.location", None,
        "File with the CA certificates of clients and other brokers, PEM or PKCS#12, or a directory with ca.crt."
        " Reloaded when its content changes.",
        dynamic=True,
    ),
    define("ssl.truststore.password", None, "Password of a PKCS#12 trust store.", kind=PASSWORD, dynamic=True),
    define(
        "ssl.truststore.certificates", None,
        "CA certificates as PEM text; replaces ssl.truststore.location.",
        kind=PASSWORD, max_chars=MAX_PEM_CHARS, dynamic=True,
    ),
    define(
        "ssl.client.auth", "none",
        "Whether clients authenticate with certificates. On SASL_SSL listeners only the value with the listener's"
        " prefix applies (KIP-684).",
        allowed=("none", "requested", "required"), dynamic=True,
    ),
    define(
        "ssl.enabled.protocols", ",".join(TLS_VERSIONS), "TLS versions.", kind=LIST, allowed=TLS_VERSIONS, dynamic=True,
    ),
    define(
        "ssl.cipher.suites", "",
        "Cipher suites by their IANA or OpenSSL names, in the order of preference. Empty for the defaults.",
        kind=LIST, dynamic=True,
    ),
    define(
        "ssl.principal.mapping.rules", "DEFAULT",
        "Rules RULE:pattern/replacement/[LU], or DEFAULT, separated by commas, that map a client certificate's"
        " distinguished name to a principal's name (KIP-371).",
        max_chars=MAX_RULES_CHARS,
    ),
    define(
        "ssl.allow.dn.changes", False,
        "Whether a reloaded certificate may have another distinguished name.",
    ),
    define(
        "ssl.allow.san.changes", False,
        "Whether a reloaded certificate may lack subject alternative names of the present one.",
    ),
    define(
        "ssl.endpoint.identification.algorithm", "https",
        "Whether a broker checks the host name in the certificates of other brokers: https, or empty for no check.",
        allowed=("https", "HTTPS", ""), dynamic=True,
    ),
    define(
        "sasl.jaas.config", None,
        "Login module of a mechanism, as in Kafka, with the prefix of listener and mechanism: users of PLAIN as"
        " user_NAME=\"PASSWORD\", and username and password with which brokers log in to each other. It applies to"
        " new logins.",
        kind=PASSWORD, max_chars=MAX_JAAS_CHARS, convert=lambda text: parse_jaas(text, "sasl.jaas.config"),
        dynamic=True,
    ),
    define(
        MAX_RECEIVE_SIZE, 524_288, "Maximum size of a request before the client is authenticated, in bytes.",
        minimum=1024,
    ),
    define(
        FAILURE_DELAY, 100, "Time after which a failed authentication is answered and the connection closed, in ms.",
        maximum=60_000,
    ),
    define(
        AUTHENTICATION_TIMEOUT, 30_000,
        "Time in which a client must authenticate, in ms. Connections that do not are closed.", minimum=100,
        maximum=600_000,
    ),
    define(
        "connections.max.reauth.ms", 0,
        "Maximum time between two authentications of a connection, in ms; it is closed at its next request if the"
        " client has not authenticated again (KIP-368). 0 for no limit but that of a token.",
        kind=SettingType.LONG, maximum=MAX_MS,
    ),
    define(
        ALLOWED_URLS, "",
        "Addresses that sasl.oauthbearer.jwks.endpoint.url may have. Empty for none. Kafka's equivalent is the system"
        " property org.apache.kafka.sasl.oauthbearer.allowed.urls.",
        kind=LIST,
    ),
    define(
        "sasl.oauthbearer.jwks.endpoint.url", None,
        "Address of the identity provider's keys, https://HOST/PATH or file:///PATH; OAUTHBEARER requires it.",
    ),
    define(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "Time after which the keys are fetched again, in ms.",
        kind=SettingType.LONG, minimum=1000, maximum=MAX_MS,
    ),
    define(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100,
        "Time after a failed fetch of the keys until the next, in ms; doubles with each failure.",
        kind=SettingType.LONG, minimum=1, maximum=MAX_MS,
    ),
    define(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000,
        "Maximum of that time, and time after which one more fetch for an unknown key id is allowed, up to 5, in ms.",
        kind=SettingType.LONG, minimum=1, maximum=MAX_MS,
    ),
    define("sasl.oauthbearer.expected.audience", "", "Audiences of which a token must name one.", kind=LIST),
    define("sasl.oauthbearer.expected.issuer", None, "Issuer that a token must name."),
    define(
        "sasl.oauthbearer.clock.skew.seconds", 30,
        "Difference between the clocks of broker and identity provider that is tolerated, in seconds.", maximum=3600,
    ),
    define("sasl.oauthbearer.sub.claim.name", "sub", "Claim of a token that has the principal's name."),
    define("sasl.oauthbearer.scope.claim.name", "scope", "Claim of a token that has its scopes."),
    define(
        "sasl.oauthbearer.groups.claim.name", None,
        "Claim of a token that has the names of the client's groups, to which ACLs of `Group:NAME` apply. Not Kafka's.",
    ),
)  # fmt: skip
SECURITY_SETTINGS: dict[str, Setting] = {known.name: known for known in SETTINGS}
BROKER_WIDE = frozenset(
    {
        PROTOCOL_MAP, INTER_BROKER_LISTENER, INTER_BROKER_PROTOCOL, INTER_BROKER_MECHANISM, MAX_RECEIVE_SIZE,
        FAILURE_DELAY, AUTHENTICATION_TIMEOUT, ALLOWED_URLS,
    }
)  # fmt: skip
LISTENER_SETTINGS = frozenset(SECURITY_SETTINGS) - BROKER_WIDE
"""Names that may have a listener's prefix."""
MECHANISM_SETTINGS = frozenset(
    name for name in LISTENER_SETTINGS if name.startswith("sasl.") and name != ENABLED_MECHANISMS
)
"""Names that may have the prefix of a listener and a mechanism."""


class PrefixedName(NamedTuple):
    """A setting of one listener (upper case), and of one of its mechanisms (upper case) if not None."""

    listener: str
    mechanism: str | None
    name: str

    def __str__(self) -> str:
        mechanism = "" if self.mechanism is None else f"{self.mechanism.lower()}."
        return f"{LISTENER_PREFIX}{self.listener.lower()}.{mechanism}{self.name}"


def check_listener_name(setting: str, name: str) -> str:
    """Return the name in upper case. Raises `InvalidSetting`."""
    if not LISTENER_NAME.fullmatch(name.upper()):
        raise InvalidSetting(
            f"invalid value {quoted(name)} for {setting}: it must be a listener's name of letters, digits and '_'"
        )
    return name.upper()


def split_prefix(name: str) -> PrefixedName | None:
    """Return the parts of a name with a listener's prefix; None if it has none or the setting cannot have one."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    if not PREFIX_NAME.fullmatch(listener):
        return None
    if rest in LISTENER_SETTINGS:
        return PrefixedName(listener.upper(), None, rest)
    mechanism, _, rest = rest.partition(".")
    if mechanism != mechanism.lower() or mechanism.upper() not in MECHANISMS or rest not in MECHANISM_SETTINGS:
        return None
    return PrefixedName(listener.upper(), mechanism.upper(), rest)


def prefixed_setting(name: str) -> Setting | None:
    """Return the definition of a setting by its name with a listener's prefix; None if there is none."""
    prefixed = split_prefix(name)
    return None if prefixed is None else replace(SECURITY_SETTINGS[prefixed.name], name=name)


def name_from_variable(dotted: str) -> str | None:
    """Return the name with a listener's prefix that an environment variable means, of which `dotted` has the words.

    Dots stand for the underscores of the listener's name and the hyphens of the mechanism's, too: `listener.name.sasl.
    ssl.ssl.keystore.location` is that of the listener SASL_SSL. Returns None if the variable means no such name.
    """
    known = next((name for name in LISTENER_SETTINGS if dotted.endswith(f".{name}")), None)
    if known is None or not dotted.startswith(LISTENER_PREFIX):
        return None
    listener = dotted[len(LISTENER_PREFIX) : -len(known) - 1]
    mechanism = None
    if known in MECHANISM_SETTINGS:
        endings = {each: "." + each.lower().replace("-", ".") for each in MECHANISMS}
        mechanism = next((each for each, ending in endings.items() if listener.endswith(ending)), None)
        listener = listener.removesuffix(endings.get(mechanism or "", ""))
    listener = listener.replace(".", "_")
    return str(PrefixedName(listener.upper(), mechanism, known)) if PREFIX_NAME.fullmatch(listener) else None
