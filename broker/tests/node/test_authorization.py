"""The authorizer that settings select, and clusters whose brokers could not authorize each other."""

from __future__ import annotations

import pytest

from penstock.config.authorization import AUTHORIZERS, certificate_principals, super_users_of
from penstock.config.broker import BrokerConfig
from penstock.config.listener_security import ListenerSecurity, SecurityProtocol, TlsSettings
from penstock.node.authorization import check_brokers_are_authorized, make_authorizer
from penstock.node.settings import StartError
from penstock.security.principal import Principal
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, ResourceType

MUTUAL_TLS = ListenerSecurity("INTERNAL", SecurityProtocol.SSL, TlsSettings(client_auth="required"))
SERVER_TLS = ListenerSecurity("INTERNAL", SecurityProtocol.SSL, TlsSettings())
SASL = ListenerSecurity("INTERNAL", SecurityProtocol.SASL_PLAINTEXT, mechanisms=("SCRAM-SHA-512",))
PLAIN = ListenerSecurity("INTERNAL")


def config(**texts: str) -> BrokerConfig:
    return BrokerConfig.from_texts({name.replace("_", "."): text for name, text in texts.items()})


@pytest.mark.parametrize("name", AUTHORIZERS)
def test_an_authorizer_is_selected_by_its_short_or_full_name(name: str) -> None:
    authorizer = make_authorizer(config(authorizer_class_name=name), ClusterView(), lambda: True)
    assert authorizer.is_enabled is bool(name)


def test_super_users_are_separated_by_semicolons_because_names_have_commas() -> None:
    texts = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:CN=b0,O=x; User:admin;"}
    authorizer = make_authorizer(config(**texts), ClusterView(), lambda: True)
    for name, is_allowed in (("CN=b0,O=x", True), ("admin", True), ("O=x", False), ("CN=b0", False)):
        who = Principal("User", name)
        found = authorizer.is_allowed(who, "10.0.0.1", AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        assert found is is_allowed


def test_super_users_that_are_distinguished_names_are_reserved_for_certificates() -> None:
    names = ("User:CN=b-broker,O=penstock-internal", "User:2.5.4.3=b", "User:admin", "User:svc:a=b", "User:a.b@c")
    assert certificate_principals(super_users_of(";".join(names))) == set(names[:2])


def test_resources_without_acls_can_be_open_to_everyone() -> None:
    texts = {"authorizer_class_name": "StandardAuthorizer", "allow_everyone_if_no_acl_found": "true"}
    authorizer = make_authorizer(config(**texts), ClusterView(), lambda: True)
    assert authorizer.is_allowed(Principal("User", "a"), "::1", AclOperation.READ, ResourceType.TOPIC, "t")


@pytest.mark.parametrize("security", [PLAIN, SERVER_TLS])
def test_brokers_that_do_not_authenticate_each_other_do_not_start(
    security: ListenerSecurity,
) -> None:
    with pytest.raises(StartError, match=r'"User:ANONYMOUS", which is not in super\.users'):
        check_brokers_are_authorized(config(authorizer_class_name="StandardAuthorizer"), security)
    check_brokers_are_authorized(config(), security)
    trusted = config(authorizer_class_name="StandardAuthorizer", super_users="User:ANONYMOUS")
    check_brokers_are_authorized(trusted, security)


@pytest.mark.parametrize("security", [MUTUAL_TLS, SASL])
def test_brokers_that_authenticate_each_other_start_with_an_authorizer(security: ListenerSecurity) -> None:
    check_brokers_are_authorized(config(authorizer_class_name="StandardAuthorizer"), security)
