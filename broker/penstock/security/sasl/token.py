"""Validation of signed tokens (RFC 7519): signature, issuer, audience, times, principal and groups.

Only asymmetric algorithms are accepted, and only keys of the configured set: never a token without a signature
(CVE-2026-33557), nor one whose signature is a keyed hash with the public key.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import Key

from penstock.security.principal import Principal
from penstock.security.sasl.exchange import (
    MAX_NAME_CHARS,
    AuthenticationRejected,
    FailureReason,
    Identity,
    user_principal,
)
from penstock.security.sasl.jwks import KeySetCache

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
MAX_TOKEN_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_GROUPS = 512
"""Groups of a token. A token with more is rejected: a group that was left out could be one that is denied something."""
MAX_KEYS_TRIED = 8
"""Keys that are tried for a token without a key id."""


class TokenHeader(msgspec.Struct, frozen=True):
    """The parts of a token's header that matter. A `crit` header demands extensions, none of which is supported."""

    alg: str
    kid: str | None = None
    crit: Any = None
    b64: bool = True


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a listener demands of tokens. An empty audience or no issuer means any, no groups claim means no groups."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: float = 30.0
    principal_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str | None = None


class TokenValidator:
    """Validates tokens with the keys of an identity provider. `now_s` is the wall clock in seconds since 1970."""

    def __init__(self, rules: TokenRules, keys: KeySetCache, now_s: Callable[[], float]) -> None:
        self._rules, self._keys, self._now_s = rules, keys, now_s
        self._registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        self._registry.max_header_length = MAX_HEADER_BYTES

    async def validate(self, token: str) -> Identity:
        """Return the identity that the token proves. Raises `AuthenticationRejected`."""
        header = parse_header(token)
        keys = await self._keys.find(header.kid)
        claims = parse_claims(self._verified_payload(token, header, keys))
        return self._identity(claims)

    def _verified_payload(self, token: str, header: TokenHeader, keys: list[Key]) -> bytes:
        for key in keys[:MAX_KEYS_TRIED]:
            if key.alg not in (None, header.alg):
                continue
            try:
                return bytes(jws.deserialize_compact(token, key, registry=self._registry).payload or b"")
            except (JoseError, ValueError, RecursionError):
                continue
        raise rejected("no key of the key set has signed the token")

    def _identity(self, claims: dict[str, Any]) -> Identity:
        rules, now_s = self._rules, self._now_s()
        expires_s = self._check_times(claims, now_s)
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise rejected("the token has another issuer")
        if rules.audiences and not set(rules.audiences) & texts_of(claims.get("aud")):
            raise rejected("the token is for another audience")
        scope = claims.get(rules.scope_claim)
        if scope is not None and scope != [] and not texts_of(scope):
            raise rejected(f'claim "{rules.scope_claim}" is not text')
        return Identity(self._principal(claims), int((expires_s + rules.clock_skew_s) * 1000))

    def _principal(self, claims: dict[str, Any]) -> Principal:
        name = claims.get(self._rules.principal_claim)
        if not isinstance(name, str):
            raise rejected(f'the token has no claim "{self._rules.principal_claim}"')
        return user_principal(name)._replace(groups=self._groups(claims))

    def _groups(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of the groups, sorted: clients of the same groups share authorization decisions."""
        claim = self._rules.groups_claim
        value = None if claim is None else claims.get(claim)
        if value is None:
            return ()
        groups = texts_of(value)
        if not groups and value != []:
            raise rejected(f'claim "{claim}" is neither text nor a list of texts')
        if len(groups) > MAX_GROUPS or not all(0 < len(name) <= MAX_NAME_CHARS for name in groups):
            raise rejected(f'claim "{claim}" has more than {MAX_GROUPS} groups, or one with an empty or too long name')
        return tuple(sorted(groups))

    def _check_times(self, claims: dict[str, Any], now_s: float) -> float:
        """Return the time of expiry, in seconds since 1970."""
        skew_s = self._rules.clock_skew_s
        expires_s = seconds_of(claims, "exp")
        if expires_s is None:
            raise rejected("the token has no expiry")
        if expires_s + skew_s <= now_s:
            raise rejected("the token has expired")
        for name in ("nbf", "iat"):
            start_s = seconds_of(claims, name)
            if start_s is not None and start_s - skew_s > now_s:
                raise rejected("the token is not valid yet")
        return expires_s


def parse_header(token: str) -> TokenHeader:
    """Return the token's header. Raises `AuthenticationRejected` for anything that must not be verified at all."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_BYTES or len(parts) != 3 or len(parts[0]) > MAX_HEADER_BYTES:
        raise rejected("the token is not a signed token, or too large")
    try:
        raw = base64.urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4))
        header = msgspec.json.decode(raw, type=TokenHeader)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        raise rejected("the token has no valid header") from None
    if header.alg not in ALGORITHMS:
        raise rejected("the token has no signature, or one of an algorithm that is not accepted")
    if header.crit is not None or not header.b64:
        raise rejected("the token demands an extension")
    return header


def parse_claims(payload: bytes) -> dict[str, Any]:
    """Return the claims of a verified token. Raises `AuthenticationRejected`."""
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise rejected("the token's claims are not a JSON object") from None


def texts_of(claim: object) -> set[str]:
    """Return the texts of a claim that is a text or a list of texts; empty if it is neither."""
    if isinstance(claim, str):
        return {claim}
    if isinstance(claim, list) and all(isinstance(each, str) for each in claim):
        return set(claim)
    return set()


def seconds_of(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970; None if the claim is missing. Raises `AuthenticationRejected`."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 1 << 42:
        raise rejected(f'claim "{name}" is not a time')
    return float(value)


def rejected(message: str) -> AuthenticationRejected:
    """Return the error for a token that is not accepted."""
    return AuthenticationRejected(FailureReason.TOKEN, message)
