"""The Secret of a User names the listener on which its password is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.users.observation import ClientEndpoint, client_endpoint

SCRAM: dict[str, Any] = {"name": "a", "port": 9093}
PLAIN_TEXT: dict[str, Any] = {"name": "b", "port": 9094, "tls": False, "authentication": "scram"}
CERTIFICATES: dict[str, Any] = {"name": "c", "port": 9095, "authentication": "tls"}
OUTSIDE: dict[str, Any] = {"name": "d", "port": 9096, "type": "nodeport", "authentication": "scram"}


@pytest.mark.parametrize(
    ("spec", "endpoint"),
    [
        ({}, ClientEndpoint("c.ns.svc:9092")),
        ({"port": 9192}, ClientEndpoint("c.ns.svc:9192")),
        ({"listeners": [CERTIFICATES, OUTSIDE, SCRAM, PLAIN_TEXT]}, ClientEndpoint("c.ns.svc:9093")),
        ({"listeners": [OUTSIDE, PLAIN_TEXT]}, ClientEndpoint("c.ns.svc:9094", may_have_tls=False)),
        ({"listeners": [CERTIFICATES], "port": 9192}, ClientEndpoint("c.ns.svc:9192")),
    ],
)
def test_it_is_the_first_internal_listener_with_scram(spec: dict[str, Any], endpoint: ClientEndpoint) -> None:
    assert client_endpoint({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec}) == endpoint
