"""Keys of SCRAM credentials (RFC 5802, section 3): what verifies a password without containing it."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from penstock.state.security_records import ScramCredentialRecord

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""hashlib names by mechanism."""
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384
"""Limits of new credentials, those of Kafka."""
DEFAULT_ITERATIONS = 8192
SALT_BYTES = 24


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return `SaltedPassword` by PBKDF2, which takes milliseconds: call it in a thread."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, iterations)


def stored_key(mechanism: str, salted: bytes) -> bytes:
    """Return `StoredKey` of a salted password."""
    digest = DIGESTS[mechanism]
    return hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()


def server_key(mechanism: str, salted: bytes) -> bytes:
    """Return `ServerKey` of a salted password."""
    return hmac.digest(salted, b"Server Key", DIGESTS[mechanism])


def credential_of(user: str, mechanism: str, salt: bytes, iterations: int, salted: bytes) -> ScramCredentialRecord:
    """Return the credential of a salted password."""
    return ScramCredentialRecord(
        user=user,
        mechanism=mechanism,
        salt=salt,
        stored_key=stored_key(mechanism, salted),
        server_key=server_key(mechanism, salted),
        iterations=iterations,
    )


def new_credential(
    user: str, mechanism: str, password: str, iterations: int = DEFAULT_ITERATIONS
) -> ScramCredentialRecord:
    """Return a credential with a new salt; takes milliseconds."""
    salt = secrets.token_bytes(SALT_BYTES)
    return credential_of(
        user, mechanism, salt, iterations, salted_password(mechanism, password.encode(), salt, iterations)
    )
