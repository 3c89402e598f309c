"""Which tokens are accepted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey
from token_kit import (
    NOW_S,
    OTHER_KEY,
    RSA_KEY,
    RULES,
    SIGNING_KEY,
    Provider,
    claims,
    encoded,
    signed,
    token,
)

from penstock.security.principal import Principal
from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason, Identity
from penstock.security.sasl.token import ALGORITHMS, MAX_GROUPS, MAX_TOKEN_BYTES, TokenRules


def validate(text: str, rules: TokenRules = RULES, provider: Provider | None = None) -> Identity:
    return asyncio.run((provider or Provider()).validator(rules).validate(text))


def rejection(text: str, rules: TokenRules = RULES) -> str:
    with pytest.raises(AuthenticationRejected) as caught:
        validate(text, rules)
    assert caught.value.reason is FailureReason.TOKEN
    return str(caught.value)


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    return ".".join((encoded(json.dumps(header).encode()), encoded(json.dumps(claims()).encode()), encoded(signature)))


@pytest.mark.parametrize(
    ("key", "alg"), [(SIGNING_KEY, "ES256"), *((RSA_KEY, each) for each in ALGORITHMS if each[0] in "RP")]
)
def test_a_token_that_the_provider_signed_proves_its_subject(key: Any, alg: str) -> None:
    identity = validate(signed(claims(), key, alg))
    assert identity.principal == Principal("User", "ana")


@pytest.mark.parametrize("curve", ["P-384", "P-521"])
def test_the_other_curves_are_accepted_with_their_algorithms(curve: str) -> None:
    key = ECKey.generate_key(curve, {"kid": "large"})
    alg = {"P-384": "ES384", "P-521": "ES512"}[curve]
    assert validate(signed(claims(), key, alg), provider=Provider(key)).principal.name == "ana"


def test_the_identity_ends_with_the_token_and_the_tolerated_difference_of_clocks() -> None:
    assert validate(token(exp=NOW_S + 60)).expires_at_ms == (NOW_S + 60 + 30) * 1000


def test_cve_2026_33557_a_token_that_nobody_of_the_key_set_signed_is_rejected() -> None:
    assert "no key" in rejection(signed(claims(), OTHER_KEY))
    assert "no key" in rejection(token()[:-8] + "AAAAAAAA")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "HS256", "EdDSA", "RS1"])
def test_a_token_without_a_signature_or_of_another_algorithm_is_rejected(alg: str) -> None:
    assert "not accepted" in rejection(unsigned({"alg": alg, "kid": "one"}))


def test_a_keyed_hash_with_the_public_key_is_no_signature() -> None:
    content = unsigned({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
    for secret in (RSA_KEY.as_pem(private=False), json.dumps(RSA_KEY.as_dict(private=False)).encode()):
        mac = hmac.digest(secret, content.encode(), hashlib.sha256)
        assert "not accepted" in rejection(f"{content}.{encoded(mac)}")


def test_a_key_in_the_token_itself_is_not_trusted() -> None:
    own = ECKey.generate_key("P-256", {"kid": "own"})
    public = own.as_dict(private=False)
    assert "no key" in rejection(signed(claims(), own, jwk=public))
    assert "no key" in rejection(signed(claims(), own, jku="https://id.example/keys"))


def test_a_token_of_another_issuer_or_for_another_audience_is_rejected() -> None:
    assert "issuer" in rejection(token(iss="https://other.example/"))
    assert "issuer" in rejection(token(iss=None))
    assert "audience" in rejection(token(aud="another"))
    assert "audience" in rejection(token(aud=None))
    assert "audience" in rejection(token(aud=["another", "third"]))
    assert "audience" in rejection(token(aud={"penstock": 1}))
    assert validate(token(aud=["another", "penstock"])).principal.name == "ana"
    assert validate(token(iss="x", aud="y"), TokenRules()).principal.name == "ana"


def test_an_expired_token_is_rejected_once_the_tolerated_difference_of_clocks_is_over() -> None:
    assert validate(token(exp=NOW_S - 29)).principal.name == "ana"
    assert "expired" in rejection(token(exp=NOW_S - 30))
    assert "no expiry" in rejection(token(exp=None))


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_a_token_of_the_future_is_rejected(name: str) -> None:
    assert validate(token(**{name: NOW_S + 30})).principal.name == "ana"
    assert "not valid yet" in rejection(token(**{name: NOW_S + 31}))


@pytest.mark.parametrize("value", ["soon", True, [1], 1e300])
@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_a_time_that_is_no_number_is_rejected(name: str, value: object) -> None:
    assert "is not a time" in rejection(token(**{name: value}))


def test_the_principal_comes_from_the_configured_claim() -> None:
    rules = TokenRules(RULES.issuer, RULES.audiences, principal_claim="client_id")
    assert validate(token(client_id="job"), rules).principal.name == "job"
    assert "client_id" in rejection(token(), rules)
    assert '"sub"' in rejection(token(sub=7))


@pytest.mark.parametrize(
    ("groups", "names"),
    [(["ops", "dev", "ops"], ("dev", "ops")), ("dev", ("dev",)), ([], ()), (None, ()), (["a b,c:d"], ("a b,c:d",))],
)
def test_groups_come_from_the_configured_claim(groups: object, names: tuple[str, ...]) -> None:
    rules = TokenRules(RULES.issuer, RULES.audiences, groups_claim="roles")
    assert validate(token(roles=groups), rules).principal == Principal("User", "ana", names)
    assert validate(token(roles=groups)).principal == Principal("User", "ana"), "there is no such setting"


@pytest.mark.parametrize(
    "groups", [7, {"dev": 1}, ["dev", 7], [""], "", ["x" * 256], [f"g{n}" for n in range(MAX_GROUPS + 1)]]
)
def test_a_token_whose_groups_are_unusable_is_rejected(groups: object) -> None:
    rules = TokenRules(RULES.issuer, RULES.audiences, groups_claim="roles")
    assert '"roles"' in rejection(token(roles=groups), rules)


def test_scopes_are_texts() -> None:
    assert validate(token(scope="read write")).principal.name == "ana"
    assert validate(token(scope=["read"])).principal.name == "ana"
    assert validate(token(scope=[])).principal.name == "ana", "a provider may grant no scope"
    assert "scope" in rejection(token(scope={"read": True}))


def test_a_token_without_a_key_id_is_checked_with_each_key() -> None:
    assert validate(signed(claims(), kid=None)).principal.name == "ana"


def test_a_token_that_demands_an_extension_is_rejected() -> None:
    for header in ({"crit": ["exp"], "exp": 1}, {"b64": False}):
        assert "extension" in rejection(unsigned({"alg": "ES256", "kid": "one", **header}, b"x" * 64))


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c.d", "..", "!.!.!", "e30.e30.", "x" * (MAX_TOKEN_BYTES + 1)])
def test_what_is_not_a_token_is_rejected(text: str) -> None:
    rejection(text)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"7", b"\xff", b"[" * 50_000])
def test_a_signed_token_whose_claims_are_not_an_object_is_rejected(payload: bytes) -> None:
    rejection(signed(payload))


def test_deeply_nested_headers_are_rejected() -> None:
    header = encoded(b'{"alg":"ES256","x":' + b"[" * 5000 + b"]" * 5000 + b"}")
    rejection(f"{header}.{encoded(b'{}')}.{encoded(b'x' * 64)}")


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=100))
def test_random_tokens_are_rejected_and_raise_nothing_else(header: bytes, payload: bytes, signature: bytes) -> None:
    known = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"rsa"}').decode()
    for first in (encoded(header), known, header.decode("latin-1")):
        rejection(f"{first}.{encoded(payload)}.{encoded(signature)}")


@given(st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "scope"]),
                       st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                                    lambda each: st.lists(each, max_size=3), max_leaves=5)))  # fmt: skip
def test_random_claims_are_rejected_or_name_a_principal(payload: dict[str, Any]) -> None:
    try:
        identity = validate(signed(payload))
    except AuthenticationRejected:
        return
    assert identity.principal.name == payload["sub"]
    assert payload["iss"] == RULES.issuer
