"""Looks up SCRAM credentials for logins, and makes up plausible ones for unknown users.

A login of an unknown user takes the same steps as one with a wrong password, on a credential that is derived from a
secret of the cluster: salt and iterations are the same at each attempt and on each broker, and look like those of the
other users, so that no client can find out which users exist.
"""

from __future__ import annotations

import hmac
from collections import Counter

from penstock.security.scram_keys import DEFAULT_ITERATIONS, SALT_BYTES
from penstock.state.security_records import ScramCredentialRecord
from penstock.state.view import ClusterView

MAX_SALT_BYTES = 128
"""Longest salt of a made-up credential."""


class ScramCredentials:
    """The credentials of the view. `secret` is the cluster's, see `control.security_admin`."""

    def __init__(self, view: ClusterView, secret: bytes) -> None:
        self._view, self._secret = view, secret
        self._shapes: dict[str, tuple[int, int]] = {}
        view.subscribe_security(self._on_change)

    def _on_change(self, changed: set[str]) -> None:
        self._shapes.clear()

    def find(self, user: str, mechanism: str) -> ScramCredentialRecord | None:
        """Return a user's credential for a mechanism; None if there is none."""
        return self._view.security.credential(user, mechanism)

    def decoy(self, user: str, mechanism: str) -> ScramCredentialRecord:
        """Return a credential that no password matches, always the same for a user."""
        salt_bytes, iterations = self._shape(mechanism)
        size = 32 if mechanism == "SCRAM-SHA-256" else 64
        return ScramCredentialRecord(
            user=user,
            mechanism=mechanism,
            salt=(self._derive("salt-1", mechanism, user) + self._derive("salt-2", mechanism, user))[:salt_bytes],
            stored_key=self._derive("stored", mechanism, user)[:size],
            server_key=self._derive("server", mechanism, user)[:size],
            iterations=iterations,
        )

    def _derive(self, purpose: str, mechanism: str, user: str) -> bytes:
        return hmac.digest(self._secret, "\0".join((purpose, mechanism, user)).encode(), "sha512")

    def _shape(self, mechanism: str) -> tuple[int, int]:
        """Return the most frequent salt size and iteration count of a mechanism."""
        shape = self._shapes.get(mechanism)
        if shape is None:
            shapes = Counter(
                (min(len(each.salt), MAX_SALT_BYTES), each.iterations)
                for each in self._view.security.credentials.values()
                if each.mechanism == mechanism
            )
            most_frequent = max(shapes, key=lambda each: (shapes[each], each), default=None)
            shape = self._shapes[mechanism] = most_frequent or (SALT_BYTES, DEFAULT_ITERATIONS)
        return shape
