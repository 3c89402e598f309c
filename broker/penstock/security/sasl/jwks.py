"""The public keys of an identity provider (RFC 7517), cached.

Keys that are older than the refresh interval are fetched again in the background, while logins use the old ones. An
unknown key id fetches at once, so that a new key is valid from its first token on. After some such fetches there is one
per backoff, so that invented key ids cannot flood the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason

log = get_logger("penstock.security")

MAX_KEYS = 100
MIN_MODULUS_CHARS, MAX_MODULUS_CHARS = 342, 1366
"""Length of an RSA key's modulus in base64url, for 2,048 to 8,192 bits."""

MAX_UNKNOWN_FETCHES = 5
"""Fetches for unknown key ids without a wait between them."""

FetchKeySet = Callable[[], Awaitable[bytes]]
"""Returns a JSON Web Key Set. Raises `KeySetUnavailable`."""


class KeySetUnavailable(Exception):
    """The key set could not be fetched; the message has the reason."""


@dataclass(frozen=True, slots=True)
class RefreshTimes:
    """Times in seconds. `backoff_s` doubles after each failure up to `max_backoff_s`, which is also the time after
    which one more fetch for an unknown key id is allowed."""

    refresh_s: float = 3600.0
    backoff_s: float = 0.1
    max_backoff_s: float = 10.0


class KeySetCache:
    """The keys by key id. Used on the event loop; `now_s` is a monotonic clock."""

    def __init__(self, fetch: FetchKeySet, times: RefreshTimes, now_s: Callable[[], float]) -> None:
        self._fetch, self._times, self._now_s = fetch, times, now_s
        self._keys: list[Key] = []
        self._stale_at_s = self._next_fetch_s = self._unknown_since_s = float("-inf")
        self._failures = 0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> list[Key]:
        """Return the keys with an id, all for None. Raises `AuthenticationRejected` if no key was ever fetched."""
        found = self._matching(key_id)
        now_s = self._now_s()
        if found:
            if now_s >= self._stale_at_s:
                self._start_fetch(now_s)
            return found
        fetching = self._fetch_unknown(now_s)
        if fetching is not None:
            await asyncio.shield(fetching)
        if not self._keys:
            raise AuthenticationRejected(FailureReason.UNAVAILABLE, "the keys of the token issuer are not available")
        return self._matching(key_id)

    async def close(self) -> None:
        """Cancel a fetch in progress."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _matching(self, key_id: str | None) -> list[Key]:
        return [key for key in self._keys if key_id is None or key.kid == key_id]

    def _fetch_unknown(self, now_s: float) -> asyncio.Task[None] | None:
        """As `_start_fetch`; None also if there were too many fetches for unknown key ids."""
        if self._fetching is not None or now_s < self._next_fetch_s:
            return self._fetching
        interval_s = self._times.max_backoff_s
        # Each fetch uses one interval of the past; at most `MAX_UNKNOWN_FETCHES` of them are saved.
        since_s = max(self._unknown_since_s, now_s - MAX_UNKNOWN_FETCHES * interval_s)
        if since_s + interval_s > now_s:
            return None
        self._unknown_since_s = since_s + interval_s
        return self._start_fetch(now_s)

    def _start_fetch(self, now_s: float) -> asyncio.Task[None] | None:
        """Return the fetch in progress, or a new one; None during the backoff."""
        if self._fetching is None and now_s >= self._next_fetch_s:
            self._fetching = spawn(self._refresh(), "keys of the token issuer")
        return self._fetching

    async def _refresh(self) -> None:
        times = self._times
        try:
            self._keys = parse_key_set(await self._fetch())
            self._failures = 0
            self._stale_at_s = self._now_s() + times.refresh_s
        except KeySetUnavailable as e:
            backoff_s = min(times.backoff_s * (1 << min(self._failures, 20)), times.max_backoff_s)
            self._failures += 1
            self._next_fetch_s = self._now_s() + backoff_s
            log.warning("failed to fetch the keys of the token issuer", error=str(e), attempts=self._failures)
        finally:
            self._fetching = None


class KeySetDocument(msgspec.Struct):
    """A JSON Web Key Set."""

    keys: list[dict[str, Any]]


def parse_key_set(document: bytes) -> list[Key]:
    """Return the public keys for signatures; other keys are skipped. Raises `KeySetUnavailable` if there are none."""
    try:
        entries = msgspec.json.decode(document, type=KeySetDocument).keys
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise KeySetUnavailable("the document is not a JSON Web Key Set") from None
    if len(entries) > MAX_KEYS:
        raise KeySetUnavailable(f"the key set has {len(entries)} keys; at most {MAX_KEYS} are accepted")
    found = [key for key in map(public_key, entries) if key is not None]
    if not found:
        raise KeySetUnavailable("the key set has no RSA or EC key for signatures")
    return found


def public_key(entry: dict[str, Any]) -> Key | None:
    """Return a key for signatures; None for a symmetric, weak, invalid or encryption key."""
    if entry.get("kty") not in ("RSA", "EC") or entry.get("use", "sig") != "sig":
        return None
    if entry["kty"] == "RSA" and not MIN_MODULUS_CHARS <= len(str(entry.get("n", ""))) <= MAX_MODULUS_CHARS:
        return None
    try:
        key = JWKRegistry.import_key(entry)
        key.get_op_key("verify")
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return key
