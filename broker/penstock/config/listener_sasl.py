"""What a listener with SASL asks of its clients, and how this broker logs in to others. Resolved by `node` at startup.

Values come from `listener.name.<listener>.<mechanism>.<setting>`, else `listener.name.<listener>.<setting>`, else
`<setting>`. `sasl.jaas.config` counts only with the prefix of listener and mechanism, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting, Value
from penstock.config.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE, LoginModule, parse_jaas
from penstock.config.listener_security import ListenerSecurity, inter_broker_mechanism
from penstock.config.security_settings import SECURITY_SETTINGS, PrefixedName

JAAS = "sasl.jaas.config"
MODULES = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    "OAUTHBEARER": OAUTH_MODULE,
}
OAUTH = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class OauthSettings:
    """The `sasl.oauthbearer.*` settings of a listener. Times are in the unit of their names."""

    jwks_url: str
    allowed_urls: tuple[str, ...] = ()
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str | None = None


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The SASL settings of a listener. `plain_users` are passwords by name, of the JAAS configuration of PLAIN."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    oauth: OauthSettings | None = None
    max_reauth_ms: int = 0


@dataclass(frozen=True, slots=True)
class BrokerCredentials:
    """The mechanism, name and password with which this broker logs in to others."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class MechanismValues:
    """Values of the settings of one mechanism of a listener."""

    def __init__(self, config: BrokerConfig, listener: str, mechanism: str | None) -> None:
        self.config, self.listener, self.mechanism = config, listener, mechanism

    def names(self, setting: str) -> list[str]:
        """Return the names under which a value may be set, highest precedence first."""
        prefixed = [str(PrefixedName(self.listener, None, setting)), setting]
        if self.mechanism is None:
            return prefixed
        return [str(PrefixedName(self.listener, self.mechanism, setting)), *prefixed]

    def value(self, setting: str) -> Value | None:
        """Return the typed value; None if it is not set and has no default."""
        known = SECURITY_SETTINGS[setting]
        texts = (self.config.text(name) for name in self.names(setting))
        text = next((text for text in texts if text is not None), known.default)
        return None if text is None else known.parse(text)

    def text(self, setting: str) -> str | None:
        """Return a text; None if it is not set or empty."""
        value = self.value(setting)
        return None if value is None or value == "" else str(value)

    def number(self, setting: str) -> int:
        """Return a number."""
        value = self.value(setting)
        assert isinstance(value, int), f"{setting} is a number with a default"
        return value

    def words(self, setting: str) -> tuple[str, ...]:
        """Return a list."""
        value = self.value(setting)
        return value if isinstance(value, tuple) else ()

    def login_module(self) -> LoginModule | None:
        """Return the JAAS configuration of the mechanism; None if it is not set. Raises `InvalidSetting`."""
        assert self.mechanism is not None, "a login module belongs to a mechanism"
        name = self.names(JAAS)[0]
        text = self.config.text(name)
        if not text:
            return None
        module = parse_jaas(text, name)
        if module.name != MODULES[self.mechanism]:
            raise InvalidSetting(
                f'invalid value of {name}: the login module of {self.mechanism} is "{MODULES[self.mechanism]}"; use it'
            )
        return module


def listener_sasl(config: BrokerConfig, security: ListenerSecurity) -> SaslSettings | None:
    """Return the SASL settings of a listener; None if it has no SASL. Raises `InvalidSetting`."""
    if not security.protocol.has_sasl:
        return None
    for mechanism in security.mechanisms:
        MechanismValues(config, security.listener, mechanism).login_module()
    return SaslSettings(
        security.mechanisms,
        plain_users(config, security.listener) if "PLAIN" in security.mechanisms else {},
        oauth_settings(config, security.listener) if OAUTH in security.mechanisms else None,
        MechanismValues(config, security.listener, None).number("connections.max.reauth.ms"),
    )


def plain_users(config: BrokerConfig, listener: str) -> Mapping[str, str]:
    """Return the users of PLAIN, passwords by name. Raises `InvalidSetting`."""
    module = MechanismValues(config, listener, "PLAIN").login_module()
    return {} if module is None else module.users


def oauth_settings(config: BrokerConfig, listener: str) -> OauthSettings:
    """Return the settings of OAUTHBEARER. Raises `InvalidSetting` if the address of the keys is not set."""
    values = MechanismValues(config, listener, OAUTH)
    url = values.text("sasl.oauthbearer.jwks.endpoint.url")
    if url is None:
        raise InvalidSetting(
            f'listener "{listener}" offers {OAUTH}, but sasl.oauthbearer.jwks.endpoint.url is not set; set it to the'
            " address of the identity provider's keys, https://HOST/PATH or file:///PATH"
        )
    return OauthSettings(
        jwks_url=url,
        allowed_urls=values.words("sasl.oauthbearer.allowed.urls"),
        refresh_ms=values.number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        retry_backoff_ms=values.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        retry_backoff_max_ms=values.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        issuer=values.text("sasl.oauthbearer.expected.issuer"),
        audiences=values.words("sasl.oauthbearer.expected.audience"),
        clock_skew_s=values.number("sasl.oauthbearer.clock.skew.seconds"),
        sub_claim=values.text("sasl.oauthbearer.sub.claim.name") or "sub",
        scope_claim=values.text("sasl.oauthbearer.scope.claim.name") or "scope",
        groups_claim=values.text("sasl.oauthbearer.groups.claim.name") or None,
    )


def broker_credentials(config: BrokerConfig, security: ListenerSecurity) -> BrokerCredentials | None:
    """Return how this broker logs in to others on their listener `security`; None if it has no SASL.

    Raises `InvalidSetting` if the JAAS configuration of the mechanism has no name and password.
    """
    mechanism = inter_broker_mechanism(config, security)
    if mechanism is None:
        return None
    name = str(PrefixedName(security.listener, mechanism, JAAS))
    if mechanism == OAUTH:
        raise InvalidSetting(
            f"brokers cannot log in to each other with {OAUTH}; set sasl.mechanism.inter.broker.protocol to a SCRAM"
            " mechanism or PLAIN"
        )
    module = MechanismValues(config, security.listener, mechanism).login_module()
    if module is None or module.credentials is None:
        raise InvalidSetting(
            f"brokers cannot log in to each other: {name} has no username and password; set it to"
            f' {MODULES[mechanism]} required username="..." password="...";'
        )
    return BrokerCredentials(mechanism, *module.credentials)
