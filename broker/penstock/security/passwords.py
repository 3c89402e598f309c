"""Verifies passwords in plain text against SCRAM credentials, for the PLAIN mechanism.

The key derivation takes milliseconds: it runs in a thread, at most `MAX_DERIVATIONS` at a time for the whole broker. A
password that was verified before is recognised by a hash with a key of this process, so that the usual login costs
microseconds.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from penstock.security.credentials import ScramCredentials
from penstock.security.scram_keys import salted_password, stored_key
from penstock.state.security_records import ScramCredentialRecord

MAX_DERIVATIONS = 2
"""Concurrent key derivations; further logins wait."""
MAX_REMEMBERED = 10_000
"""Verified passwords that are remembered."""
PREFERRED_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""The mechanism whose credential decides, if a user has several."""


class PasswordVerifier:
    """Verifies passwords of the cluster's users. One for all listeners, used on the event loop."""

    def __init__(
        self, credentials: ScramCredentials, run_in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]]
    ) -> None:
        self._credentials, self._run_in_thread = credentials, run_in_thread
        self._derivations = asyncio.Semaphore(MAX_DERIVATIONS)
        self._hash_key = secrets.token_bytes(32)
        self._verified: OrderedDict[str, tuple[ScramCredentialRecord, bytes]] = OrderedDict()

    def is_remembered(self, user: str, password: str) -> bool:
        """Return whether this password was verified against the user's present credential."""
        known = self._verified.get(user)
        if known is None or known[0] != self._credential(user):
            return False
        self._verified.move_to_end(user)
        return hmac.compare_digest(known[1], self._hash(password))

    async def verify(self, user: str, password: str) -> bool:
        """Return whether the password is right; takes as long for an unknown user."""
        credential = self._credential(user)
        used = credential or self._credentials.decoy(user, PREFERRED_MECHANISMS[0])

        def derive() -> bytes:
            salted = salted_password(used.mechanism, password.encode(), used.salt, used.iterations)
            return stored_key(used.mechanism, salted)

        async with self._derivations:
            derived = await self._run_in_thread(derive)
        is_right = hmac.compare_digest(derived, used.stored_key)
        if not is_right or credential is None or self._credential(user) != credential:
            return False
        self._verified[user] = (credential, self._hash(password))
        self._verified.move_to_end(user)
        if len(self._verified) > MAX_REMEMBERED:
            self._verified.popitem(last=False)
        return True

    def _credential(self, user: str) -> ScramCredentialRecord | None:
        return next(filter(None, (self._credentials.find(user, each) for each in PREFERRED_MECHANISMS)), None)

    def _hash(self, password: str) -> bytes:
        return hmac.digest(self._hash_key, password.encode(), "sha256")
