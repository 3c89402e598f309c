"""Errors of clients that tell them that they have no rights, and others."""

from __future__ import annotations

import pytest
from penstock_chaos.logins import REFUSAL


@pytest.mark.parametrize(
    ("text", "is_refusal"),
    [
        ("TopicAuthorizationFailedError", True),
        ("KafkaError{code=GROUP_AUTHORIZATION_FAILED,val=30}", True),
        ("SaslAuthenticationFailedError", True),
        ("KafkaError{code=_AUTHENTICATION,str=SASL authentication error: Authentication failed: invalid}", True),
        ("KafkaError{code=_AUTHENTICATION,str=mechanism handshake failed: Local: Broker transport failure}", False),
        ("KafkaError{code=_TRANSPORT,str=sasl_ssl://127.0.0.1:9092/1: Send failed}", False),
    ],
)
def test_a_refusal_is_an_answer_of_the_broker_and_no_lost_connection(text: str, is_refusal: bool) -> None:
    assert bool(REFUSAL.search(text)) is is_refusal
