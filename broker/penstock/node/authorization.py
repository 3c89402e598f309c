"""Creates the authorizer of a broker from its settings. Used by `broker`."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.config.listener_security import ListenerSecurity
from penstock.node.settings import StartError
from penstock.security.acl_authorizer import AclAuthorizer
from penstock.security.authorizer import AllowAll, Authorizer
from penstock.security.principal import ANONYMOUS
from penstock.state.view import ClusterView


def make_authorizer(config: BrokerConfig, view: ClusterView, is_confirmed: Callable[[], bool]) -> Authorizer:
    """Return the authorizer that `authorizer.class.name` selects. It follows the ACLs in the view.

    `is_confirmed` returns whether the view has all changes of ACLs that are older than the broker's lease.
    """
    if not config.authorizer_class_name:
        return AllowAll()
    return AclAuthorizer(view, config.super_users, config.allow_everyone_if_no_acl_found, is_confirmed)


def check_brokers_are_authorized(config: BrokerConfig, security: ListenerSecurity) -> None:
    """Raise `StartError` if the brokers of a cluster could not authorize each other.

    `security` is that of the listener between brokers. Their principals must be super users, as in Kafka. Those of
    authenticated brokers are unknown before they connect.
    """
    requires_certificate = security.tls is not None and security.tls.client_auth == "required"
    is_authenticated = security.protocol.has_sasl or (security.protocol.has_tls and requires_certificate)
    if not config.authorizer_class_name or is_authenticated or str(ANONYMOUS) in config.super_users:
        return
    raise StartError(
        f'cannot use authorizer.class.name "{config.authorizer_class_name}": brokers connect to each other on listener'
        f' "{security.listener}" ({security.protocol.value}) without authentication, as "{ANONYMOUS}", which is not in'
        " super.users; authenticate the listener with SASL or client certificates, and list the brokers' principals in"
        " super.users"
    )
