"""Creates the authentication of the listeners with SASL from their settings. Called by `broker` at start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from penstock.api.authentication import AuthenticationClock, AuthenticationLimits, SaslAuthenticator, SaslConnection
from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.dispatch import Dispatcher
from penstock.config.authorization import certificate_principals
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listener_sasl import OauthSettings, SaslSettings, listener_sasl, plain_users
from penstock.config.listener_security import ListenerSecurity
from penstock.config.options import UpOptions
from penstock.config.security_settings import FAILURE_DELAY, MAX_RECEIVE_SIZE
from penstock.control.bootstrap_user import BootstrapUser
from penstock.node.settings import StartError, broker_number
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.security.credentials import ScramCredentials
from penstock.security.passwords import PasswordVerifier
from penstock.security.sasl.exchange import SaslMechanism
from penstock.security.sasl.plain import PlainMechanism
from penstock.security.sasl.scram import ScramMechanism
from penstock.state.view import ClusterView

MAX_PASSWORD_BYTES = 4096

log = get_logger("penstock.node")

Accept = Callable[[SaslConnection], None]
"""Begins the authentication of a new connection."""


def sasl_of(config: BrokerConfig, security: Mapping[str, ListenerSecurity]) -> dict[str, SaslSettings]:
    """Return the SASL settings of the listeners that have SASL. Raises `StartError`."""
    try:
        found = {name: listener_sasl(config, each) for name, each in security.items()}
        for name, settings in found.items():
            if settings is not None and settings.oauth is not None:
                check_oauth(name, settings.oauth)
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    return {name: settings for name, settings in found.items() if settings is not None}


def check_oauth(listener: str, settings: OauthSettings) -> None:
    """Raise `InvalidSetting` if the keys may not be fetched; warn of rules that accept tokens for others."""
    from penstock.security.key_set_source import key_set_source

    key_set_source(settings.jwks_url, settings.allowed_urls)
    if settings.issuer is None or not settings.audiences:
        log.warning(
            "tokens for other services are accepted; set sasl.oauthbearer.expected.issuer and"
            " sasl.oauthbearer.expected.audience",
            listener=listener,
        )


def bootstrap_user_of(options: UpOptions) -> BootstrapUser | None:
    """Return the first administrator; None if none is configured. Raises `StartError`."""
    if options.bootstrap_user is None or options.bootstrap_password_file is None:
        return None
    path = options.bootstrap_password_file
    try:
        with open(path, "rb") as file:
            password = file.read(MAX_PASSWORD_BYTES + 1).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise StartError(f'cannot read the password of the first administrator from "{path}": {why}') from None
    if not password or len(password) > MAX_PASSWORD_BYTES:
        raise StartError(f'the password in "{path}" is empty or too long; use 1 to {MAX_PASSWORD_BYTES} bytes')
    return BootstrapUser(options.bootstrap_user, password)


class ListenerAuthentication:
    """The authentication of all listeners with SASL. Closes are scheduled on `cleanup`."""

    def __init__(
        self,
        config: BrokerConfig,
        settings: Mapping[str, SaslSettings],
        stats: AuthenticationStats,
        clock: Clock,
        cleanup: contextlib.AsyncExitStack,
    ) -> None:
        self.config, self.settings, self.stats, self.clock = config, settings, stats, clock
        self.cleanup = cleanup

    def start(self, view: ClusterView, secret: bytes, dispatcher: Dispatcher) -> dict[str, Accept]:
        """Return what begins the authentication of a connection, by the name of the listener."""
        credentials = ScramCredentials(view, secret)
        loop = asyncio.get_running_loop()
        verifier = PasswordVerifier(credentials, lambda work: loop.run_in_executor(None, work))
        accept: dict[str, Accept] = {}
        for listener, settings in self.settings.items():
            mechanisms = self.mechanisms(listener, settings, credentials, verifier)
            authenticator = SaslAuthenticator(
                {each.name: each for each in mechanisms},
                self.limits(settings),
                dispatcher,
                self.stats,
                AuthenticationClock(loop.time, self.clock.wall_ms, loop.call_later),
            )
            self.cleanup.push_async_callback(authenticator.close)
            accept[listener] = authenticator.accept
        return accept

    def mechanisms(
        self, listener: str, settings: SaslSettings, credentials: ScramCredentials, verifier: PasswordVerifier
    ) -> Sequence[SaslMechanism]:
        """Return the mechanisms of a listener."""
        found: list[SaslMechanism] = []
        for name in settings.mechanisms:
            if name == "PLAIN":
                found.append(self.plain(listener, PlainMechanism(verifier, settings.plain_users)))
            elif settings.oauth is not None and name == "OAUTHBEARER":
                found.append(self.oauthbearer(settings.oauth))
            else:
                found.append(ScramMechanism(name, credentials))
        return found

    def plain(self, listener: str, mechanism: PlainMechanism) -> PlainMechanism:
        """Return the PLAIN mechanism of a listener, whose users follow the dynamic settings from now on."""

        def on_settings_changed() -> None:
            try:
                mechanism.set_users(plain_users(self.config, listener))
            except InvalidSetting as e:
                log.error("users of PLAIN not changed; the present ones stay", listener=listener, reason=str(e))

        self.config.subscribe(on_settings_changed)
        on_settings_changed()
        return mechanism

    def oauthbearer(self, settings: OauthSettings) -> SaslMechanism:
        """Return the OAUTHBEARER mechanism of a listener. Its libraries are only imported if a listener offers it."""
        from penstock.security.key_set_source import key_set_source
        from penstock.security.sasl.jwks import KeySetCache, RefreshTimes
        from penstock.security.sasl.oauthbearer import OauthBearerMechanism
        from penstock.security.sasl.token import TokenRules, TokenValidator

        times = RefreshTimes(
            settings.refresh_ms / 1000, settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000
        )
        source = key_set_source(settings.jwks_url, settings.allowed_urls)
        keys = KeySetCache(source, times, asyncio.get_running_loop().time)
        self.cleanup.push_async_callback(keys.close)
        rules = TokenRules(
            settings.issuer,
            settings.audiences,
            settings.clock_skew_s,
            settings.sub_claim,
            settings.scope_claim,
            settings.groups_claim,
        )
        return OauthBearerMechanism(TokenValidator(rules, keys, lambda: self.clock.wall_ms() / 1000))

    def limits(self, settings: SaslSettings) -> AuthenticationLimits:
        """Return the limits of a listener."""
        return AuthenticationLimits(
            broker_number(self.config, MAX_RECEIVE_SIZE),
            broker_number(self.config, FAILURE_DELAY) / 1000,
            settings.max_reauth_ms,
            certificate_principals(self.config.super_users),
        )
