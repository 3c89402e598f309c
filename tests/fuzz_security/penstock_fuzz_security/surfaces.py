"""What is fuzzed. Each surface draws one input; an exception that it may not raise is a finding."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509.oid import NameOID
from joserfc import jwt
from joserfc.jwk import ECKey

from penstock.config.definition import InvalidSetting
from penstock.config.jaas import parse_jaas
from penstock.config.listener_security import ListenerSecurity, SecurityProtocol, TlsSettings
from penstock.security.acl_filters import InvalidAcl, StoredAclFilter, new_acl
from penstock.security.credentials import ScramCredentials
from penstock.security.passwords import PasswordVerifier
from penstock.security.sasl.exchange import AuthenticationRejected, SaslMechanism, Step
from penstock.security.sasl.jwks import KeySetCache, KeySetUnavailable, RefreshTimes, parse_key_set
from penstock.security.sasl.oauthbearer import OauthBearerMechanism, parse_initial
from penstock.security.sasl.plain import PlainMechanism
from penstock.security.sasl.scram import ScramMechanism
from penstock.security.sasl.token import TokenRules, TokenValidator, parse_claims, parse_header
from penstock.server.tls.contexts import build_contexts, identity_of
from penstock.server.tls.distinguished_names import rfc2253_text
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.principal_mapping import NoMatchingRule, parse_mapping_rules
from penstock.server.tls.stores import StoreSources, parse_key_store, parse_trust_store
from penstock.state.view import ClusterView
from penstock_fuzz_security.admin_requests import AdminRequests
from penstock_fuzz_security.conversations import PlainText, SaslConversations
from penstock_fuzz_security.mutations import Draws

PASSWORD = "of-the-store"
PEM_SHARE = 0.98
"""Deriving the key of a PKCS#12 file takes milliseconds."""
PRIVATE_NUMBER = 0x1D5A7C3E9B2F4860718293A4B5C6D7E8F90A1B2C3D4E5F60718293A4B5C6D7E8
PLAIN_MESSAGE = b"\0ana\0" + PASSWORD.encode()
NOW_S = 1_800_000_000
CLIENT_FIRST = b"n,,n=ana,r=fyko+d2lbbFgONRv9qkxdawL"
JAAS = b'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_c="d";'
RULES = b"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:(a|aa)+b/$0/,DEFAULT"
KEY_SET = b'{"keys":[{"kty":"EC","kid":"1","crv":"P-256","x":"AAAA","y":"AAAA"},{"kty":"RSA","n":"sXch","e":"AQAB"}]}'
TOKEN = b"eyJhbGciOiJFUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJhbmEiLCJleHAiOjF9.c2lnbmF0dXJl"
Surface = Callable[[Draws], None]


class Surfaces:
    """All surfaces, with the files and mechanisms that they need."""

    def __init__(self) -> None:
        key = ec.derive_private_key(PRIVATE_NUMBER, ec.SECP256R1())  # the same inputs in each run
        self.certificate = self_signed(key)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.store_pem = pem + self.certificate.public_bytes(Encoding.PEM)
        self.store_pkcs12 = serialize_key_and_certificates(
            b"broker", key, self.certificate, None, BestAvailableEncryption(PASSWORD.encode())
        )
        settings, sources = TlsSettings(), StoreSources(self.store_pem, None)
        security = ListenerSecurity("FUZZED", SecurityProtocol.SSL, settings)
        mapping = parse_mapping_rules("DEFAULT")
        self.tls = ListenerTls(security, sources, build_contexts(settings, sources), mapping)
        self.hello = client_hello()
        credentials = ScramCredentials(ClusterView(), bytes(32))
        self.scram = ScramMechanism("SCRAM-SHA-256", credentials, lambda: "server-nonce")
        self.plain = PlainMechanism(PasswordVerifier(credentials, derive_nothing), {"ana": PASSWORD})
        oauth, token = token_mechanism(pem)
        first_messages = {"PLAIN": PLAIN_MESSAGE, "SCRAM-SHA-256": CLIENT_FIRST, "OAUTHBEARER": token}
        self.sasl = SaslConversations([self.plain, self.scram, oauth], first_messages)
        self.plain_text, self.admin = PlainText(self.tls, self.hello), AdminRequests()
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        """Close the stores and the loop."""
        self.loop.run_until_complete(self.admin.cleanup.aclose())
        self.loop.close()

    def awaited(self, fuzz: Callable[[Draws], Coroutine[None, None, None]]) -> Surface:
        """Return a surface that needs an event loop."""
        return lambda rng: self.loop.run_until_complete(fuzz(rng))

    def by_name(self) -> dict[str, Surface]:
        """Return the surfaces."""
        return {
            "plain": self.fuzz_plain,
            "scram": self.fuzz_scram,
            "oauthbearer": fuzz_oauthbearer,
            "key_set": fuzz_key_set,
            "tls": self.fuzz_tls,
            "key_store": self.fuzz_key_store,
            "distinguished_name": self.fuzz_distinguished_name,
            "mapping_rules": fuzz_mapping_rules,
            "jaas": fuzz_jaas,
            "acl": fuzz_acl,
            "sasl_frames": self.awaited(self.sasl.fuzz),
            "plain_text": self.awaited(self.plain_text.fuzz),
            "admin_requests": self.awaited(self.admin.fuzz),
        }

    def fuzz_plain(self, rng: Draws) -> None:
        """Fuzz PLAIN for a user of the settings; others would derive keys."""
        converse(self.plain, [rng.mutated(PLAIN_MESSAGE)])

    def fuzz_scram(self, rng: Draws) -> None:
        """Fuzz both messages of SCRAM; the second follows a valid or a mutated first one."""
        first = CLIENT_FIRST if rng.random() < 0.5 else rng.mutated(CLIENT_FIRST)
        final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawLserver-nonce,p=" + b"A" * 43 + b"="
        converse(self.scram, [first, rng.mutated(final), final])

    def fuzz_tls(self, rng: Draws) -> None:
        """Pass mutated records to the server side of the handshake, in pieces."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self.tls.wrap(incoming, outgoing)
        data = rng.mutated(self.hello)
        middle = rng.randrange(len(data) + 1)
        for piece in (data[:middle], data[middle:], rng.randbytes(rng.randrange(40))):
            incoming.write(piece)
            with suppress(ssl.SSLError):
                session.do_handshake()
        assert outgoing.pending < 1 << 16, "TLS answers a hello with a bounded number of bytes"

    def fuzz_key_store(self, rng: Draws) -> None:
        """Parse mutated PEM and PKCS#12."""
        is_pem = rng.random() < PEM_SHARE
        kind, content = ("PEM", self.store_pem) if is_pem else ("PKCS12", self.store_pkcs12)
        settings = TlsSettings(
            keystore_type=kind, keystore_password=PASSWORD, truststore_type=kind, truststore_password=PASSWORD
        )
        with suppress(InvalidSetting):
            parse_trust_store(settings, rng.mutated(content))
        with suppress(InvalidSetting):
            identity_of(parse_key_store(settings, rng.mutated(content)))

    def fuzz_distinguished_name(self, rng: Draws) -> None:
        """Convert the mutated subject of a certificate."""
        with suppress(ValueError):
            rfc2253_text(rng.mutated(self.certificate.subject.public_bytes()))


def converse(mechanism: SaslMechanism, messages: list[bytes]) -> None:
    """Send messages until the exchange ends. A mutated message may authenticate only if nothing was changed in it."""
    exchange = mechanism.start()
    with suppress(AuthenticationRejected):
        for message in messages:
            step = exchange.respond(message)
            if not isinstance(step, Step):
                step = run(step)
            if step.identity is not None:
                assert message.endswith(PLAIN_MESSAGE), message


def run(step: Awaitable[Step]) -> Step:
    """Complete a step that waits for nothing."""
    waiting = step.__await__()
    try:
        next(waiting)
    except StopIteration as e:
        found: Step = e.value
        return found
    raise AssertionError("the step waits")


async def derive_nothing(work: Callable[[], bytes]) -> bytes:
    """Return a key that matches no password: the derivation takes milliseconds and reads no input of its own."""
    return bytes(64)


def token_mechanism(key_pem: bytes) -> tuple[OauthBearerMechanism, bytes]:
    """Return OAUTHBEARER with the key of an identity provider, and a valid first message."""
    key = ECKey.import_key(key_pem.decode(), {"kid": "one"})
    key_set = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    async def fetch() -> bytes:
        return key_set

    keys = KeySetCache(fetch, RefreshTimes(1e9, 0.1, 10.0), lambda: 100.0)
    claims = {"sub": "ana", "exp": NOW_S + 3600}
    token = jwt.encode({"alg": "ES256", "kid": "one"}, claims, key, algorithms=["ES256"])
    validator = TokenValidator(TokenRules(), keys, lambda: float(NOW_S))
    return OauthBearerMechanism(validator), f"n,,\1auth=Bearer {token}\1\1".encode()


def fuzz_oauthbearer(rng: Draws) -> None:
    """Parse mutated first messages, headers and claims."""
    with suppress(AuthenticationRejected):
        parse_initial(text(rng.mutated(b"n,,\x01auth=Bearer " + TOKEN + b"\x01\x01")))
    with suppress(AuthenticationRejected):
        parse_header(text(rng.mutated(TOKEN)))
    with suppress(AuthenticationRejected):
        parse_claims(rng.mutated(b'{"sub":"ana","exp":1,"aud":["a"]}'))


def fuzz_key_set(rng: Draws) -> None:
    """Parse mutated key sets."""
    with suppress(KeySetUnavailable):
        parse_key_set(rng.mutated(KEY_SET))


def fuzz_mapping_rules(rng: Draws) -> None:
    """Parse mutated rules, and apply them to a name on which backtracking would take exponential time."""
    with suppress(InvalidSetting, NoMatchingRule):
        parse_mapping_rules(text(rng.mutated(RULES))).principal("a" * 5_000)


def fuzz_jaas(rng: Draws) -> None:
    """Parse mutated JAAS configurations."""
    with suppress(InvalidSetting):
        parse_jaas(text(rng.mutated(JAAS)), "sasl.jaas.config")


def fuzz_acl(rng: Draws) -> None:
    """Create and match ACLs of arbitrary numbers and texts."""
    numbers = [rng.choice((-128, -1, 0, 1, 2, 3, 4, 5, 7, 12, 15, 127)) for _ in range(4)]
    name, principal, host = (text(rng.mutated(each)) for each in (b"orders", b"User:ana", b"10.0.0.0/8"))
    with suppress(InvalidAcl):
        acl = new_acl(numbers[0], name, numbers[1], principal, host, numbers[2], numbers[3])
        chosen = StoredAclFilter(1, name, 2, None, host, 1, 1)
        chosen.check()
        assert chosen.matches(acl)
    with suppress(InvalidAcl):
        StoredAclFilter(numbers[0], name, numbers[1], principal, host, numbers[2], numbers[3]).exact()


def text(data: bytes) -> str:
    """Return bytes as text: what is not UTF-8 never reaches a parser."""
    return data.decode(errors="replace")


def self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return a certificate of the key, made when the run starts."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "Bröker, 1"), x509.NameAttribute(NameOID.COUNTRY_NAME, "DE")]
    )
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    return builder.sign(key, hashes.SHA256())


def client_hello() -> bytes:
    """Return the first record of a client."""
    outgoing = ssl.MemoryBIO()
    session = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()
