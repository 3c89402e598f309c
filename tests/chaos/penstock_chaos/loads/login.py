"""How a workload's clients log in to a secured cluster, read from a folder as an application reads a mounted Secret.

Options: login {folder, user, mechanism}, without which clients connect in plain text. The folder has `ca.crt`,
`USER.password` for SCRAM, and `token-key.json`, the key that signs tokens. Journal: `login` client, digests of the CA
certificates and of the password, time; `error` client, text, time.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from joserfc import jwt
from joserfc.jwk import ECKey
from kafka.net.sasl.oauth import AbstractTokenProvider
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import now

ISSUER, AUDIENCE = "https://id.example/", "penstock"
TOKEN_LIFETIME_S = 12
CA, TOKEN_KEY = "ca.crt", "token-key.json"


def sign_token(key: ECKey, user: str) -> str:
    """Return a token of the identity provider."""
    at = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": at, "exp": at + TOKEN_LIFETIME_S}
    return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key, algorithms=["ES256"])


class Login:
    """The credentials of one client, as they were when it was created."""

    def __init__(self, options: dict[str, Any], journal: JournalWriter, client: str) -> None:
        settings = options.get("login")
        self.journal, self.client, self.is_secured = journal, client, settings is not None
        if settings is None:
            return
        self.folder, self.user, self.mechanism = Path(settings["folder"]), settings["user"], settings["mechanism"]
        self.trust = self._read(CA)
        self.password = self._present_password()
        journal.write("login", client, digest(self.trust), digest(self.password), now())

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _present_password(self) -> str:
        return "" if self.mechanism == "OAUTHBEARER" else self._read(f"{self.user}.password")

    @property
    def is_outdated(self) -> bool:
        """Whether the CA certificates or the password have changed, so that another client must replace this one."""
        return self.has_old_trust or (self.is_secured and self._present_password() != self.password)

    @property
    def has_old_trust(self) -> bool:
        """Whether the CA certificates have changed."""
        return self.is_secured and self._read(CA) != self.trust

    def renew(self, client: Producer | Consumer) -> None:
        """Give a librdkafka client the present password, without an interruption."""
        if self.is_secured and (present := self._present_password()) != self.password:
            self.password = present
            client.set_sasl_credentials(self.user, present)
            self.journal.write("login", self.client, digest(self.trust), digest(self.password), now())

    def token(self) -> str:
        """Return a new token."""
        return sign_token(ECKey.import_key(json.loads(self._read(TOKEN_KEY))), self.user)

    def on_error(self, error: KafkaError) -> None:
        """Record an error that librdkafka reports to the application."""
        self.journal.write("error", self.client, str(error), now())

    def librdkafka(self) -> dict[str, Any]:
        """Return settings of librdkafka."""
        if not self.is_secured:
            return {}
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.folder / CA),
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "error_cb": self.on_error,
        }

    def kafka_python(self) -> dict[str, Any]:
        """Return settings of kafka-python, which reads the CA certificates for each connection."""
        if not self.is_secured:
            return {}
        own: dict[str, Any] = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        if self.mechanism == "OAUTHBEARER":
            own = {"sasl_oauth_token_provider": Tokens(self)}
        common = {"security_protocol": "SASL_SSL", "ssl_cafile": str(self.folder / CA)}
        return {**common, "sasl_mechanism": self.mechanism, **own}

    def aiokafka(self) -> dict[str, Any]:
        """Return settings of aiokafka."""
        if not self.is_secured:
            return {}
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cadata=self.trust),
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python."""

    def __init__(self, login: Login) -> None:
        self.login = login

    def token(self) -> str:
        return self.login.token()


def digest(text: str) -> str:
    """Return a short digest, so that a journal has no secrets."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
