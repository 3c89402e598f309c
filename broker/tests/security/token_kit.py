"""An identity provider without a network: keys, key sets and tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, Key, RSAKey

from penstock.security.sasl.jwks import KeySetCache, KeySetUnavailable, RefreshTimes
from penstock.security.sasl.token import TokenRules, TokenValidator

NOW_S = 1_800_000_000.0
ISSUER = "https://id.example/"
AUDIENCE = "penstock"
RULES = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
SIGNING_KEY = ECKey.generate_key("P-256", {"kid": "one"})
RSA_KEY = RSAKey.generate_key(2048, {"kid": "rsa"})
OTHER_KEY = ECKey.generate_key("P-256", {"kid": "one"})
"""A key of another provider, with the same id."""


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with changes; None removes one."""
    valid = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ana", "iat": NOW_S - 10, "exp": NOW_S + 600}
    return {name: value for name, value in {**valid, **changes}.items() if value is not None}


def signed(payload: dict[str, Any] | bytes, key: Key = SIGNING_KEY, alg: str = "ES256", **header: Any) -> str:
    """Return a token."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    values = {"alg": alg, "kid": key.kid, **header}
    shown = {name: value for name, value in values.items() if value is not None}
    return jws.serialize_compact(shown, content, key, registry=registry)


def token(**changes: Any) -> str:
    return signed(claims(**changes))


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def key_set(*keys: Key) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Provider:
    """The published key set, and the clock of its cache."""

    def __init__(self, *keys: Key, times: RefreshTimes | None = None) -> None:
        self.document: bytes | None = key_set(*(keys or (SIGNING_KEY, RSA_KEY)))
        self.fetches = 0
        self.now_s = 0.0
        self.cache = KeySetCache(self.fetch, times or RefreshTimes(), lambda: self.now_s)

    async def fetch(self) -> bytes:
        self.fetches += 1
        if self.document is None:
            raise KeySetUnavailable("the provider is down")
        return self.document

    def validator(self, rules: TokenRules = RULES) -> TokenValidator:
        return TokenValidator(rules, self.cache, lambda: NOW_S)
