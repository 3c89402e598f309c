"""The cache of an identity provider's keys."""

from __future__ import annotations

import asyncio
import json

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey
from token_kit import OTHER_KEY, RSA_KEY, SIGNING_KEY, Provider, key_set

from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason
from penstock.security.sasl.jwks import MAX_UNKNOWN_FETCHES, KeySetUnavailable, RefreshTimes, parse_key_set

TIMES = RefreshTimes(refresh_s=3600, backoff_s=1, max_backoff_s=10)
NEW_KEY = ECKey.generate_key("P-256", {"kid": "new"})


async def settle() -> None:
    """Let the background fetch end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_keys_are_fetched_once_and_then_cached() -> None:
    provider = Provider(SIGNING_KEY, times=TIMES)
    found = await asyncio.gather(*(provider.cache.find("one") for _ in range(20)))
    assert [key.kid for keys in found for key in keys] == ["one"] * 20
    assert provider.fetches == 1


async def test_old_keys_are_refreshed_in_the_background_and_removed_keys_are_forgotten() -> None:
    provider = Provider(SIGNING_KEY, times=TIMES)
    await provider.cache.find("one")
    provider.document = key_set(NEW_KEY)
    provider.now_s = 3600
    assert await provider.cache.find("one")
    await settle()
    assert provider.fetches == 2
    assert await provider.cache.find("new")
    assert provider.fetches == 2
    assert not await provider.cache.find("one")


async def test_a_new_key_is_valid_at_once_even_right_after_a_fetch() -> None:
    provider = Provider(SIGNING_KEY, times=TIMES)
    await provider.cache.find("one")
    provider.document = key_set(SIGNING_KEY, NEW_KEY)
    assert await provider.cache.find("new")
    assert provider.fetches == 2


async def test_invented_key_ids_fetch_at_most_a_few_times_and_then_once_per_backoff() -> None:
    provider = Provider(SIGNING_KEY, times=TIMES)
    await provider.cache.find("one")
    for now_s, fetches in ((0, MAX_UNKNOWN_FETCHES), (9.9, 5), (10, 6), (20, 7), (20, 7), (1000, 12)):
        provider.now_s = now_s
        for number in range(1000):
            assert not await provider.cache.find(f"invented-{number}")
        assert provider.fetches == fetches


async def test_a_provider_that_is_down_keeps_the_keys_and_is_asked_less_and_less() -> None:
    provider = Provider(SIGNING_KEY, times=TIMES)
    await provider.cache.find("one")
    provider.document = None
    for now_s in range(3600, 3640):
        provider.now_s = now_s
        assert await provider.cache.find("one")
        await settle()
    assert provider.fetches == 1 + 7  # after 0, 1, 3, 7, 15, 25 and 35 seconds
    provider.document = key_set(NEW_KEY)
    provider.now_s = 3700
    assert await provider.cache.find("new")


async def test_without_any_keys_logins_fail_as_unavailable() -> None:
    provider = Provider(times=TIMES)
    provider.document = None
    with pytest.raises(AuthenticationRejected) as caught:
        await provider.cache.find("one")
    assert caught.value.reason is FailureReason.UNAVAILABLE


async def test_close_cancels_a_fetch() -> None:
    provider = Provider(times=TIMES)
    stuck = asyncio.Event()

    async def wait() -> bytes:
        await stuck.wait()
        return b""

    provider.cache._fetch = wait
    login = asyncio.ensure_future(provider.cache.find("one"))
    await settle()
    await provider.cache.close()
    with pytest.raises(asyncio.CancelledError):
        await login


@pytest.mark.filterwarnings("ignore:Key size")
def test_only_public_keys_for_signatures_count() -> None:
    weak = RSAKey.generate_key(1024, {"kid": "weak"})
    for_encryption = {**RSA_KEY.as_dict(private=False), "kid": "enc", "use": "enc"}
    symmetric = OctKey.generate_key(256, {"kid": "oct"}).as_dict(private=True)
    entries = [
        weak.as_dict(private=False), for_encryption, symmetric, {"kty": "RSA"}, {"kty": "EC", "crv": "P-256"}, {},
        {"kty": ["RSA"]}, {"kty": "RSA", "n": "A" * 400, "e": 5}, SIGNING_KEY.as_dict(private=False),
        {**OTHER_KEY.as_dict(private=False), "x": "AAAA"},
    ]  # fmt: skip
    assert [key.kid for key in parse_key_set(json.dumps({"keys": entries}).encode())] == ["one"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys":1}',
        b'{"keys":[]}',
        b'{"keys":[1]}',
        b"[" * 100_000,
        b"\xff",
        b'{"keys":[' + b",".join([b"{}"] * 101) + b"]}",
    ],
)
def test_a_document_without_keys_is_refused(document: bytes) -> None:
    with pytest.raises(KeySetUnavailable):
        parse_key_set(document)
