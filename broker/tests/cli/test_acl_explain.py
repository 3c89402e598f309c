"""`penstock acl explain` decides as brokers do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.acl_authorizer import AclAuthorizer
from penstock.security.principal import parse_principal
from penstock.state import keys
from penstock.state.security_records import AclRecord
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding
from penstock.wire.acl_matching import AccessRequest, decide

NAMES = ["a", "ab", "abc", "b", "*"]
HOSTS = ["*", "10.0.0.7", "10.0.0.0/8", "::1", "2001:db8::/32", "::ffff:10.0.0.7"]
OPERATIONS = [operation for operation in AclOperation if operation > AclOperation.ANY]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]

bindings = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(NAMES),
    st.sampled_from(["User:ana", "User:bob", "User:*"]),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY]),
)
requests = st.builds(
    AccessRequest,
    st.sampled_from(["User:ana", "User:bob", "User:eve"]),
    st.sampled_from(["10.0.0.7", "10.1.2.3", "192.168.0.1", "::1", "2001:db8::9", "::ffff:10.0.0.7"]),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(TYPES),
    st.sampled_from(["a", "ab", "abc", "abcd", "b", "c"]),
)


def record_of(acl: AclBinding) -> AclRecord:
    return AclRecord(
        resource_type=acl.resource_type.name,
        pattern_type=acl.pattern_type.name,
        name=acl.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.name,
        permission=acl.permission.name,
    )


@given(st.lists(bindings, max_size=12), st.lists(requests, min_size=1, max_size=8), st.booleans())
def test_a_broker_s_authorizer_gives_the_same_answers(
    acls: list[AclBinding], asked: list[AccessRequest], allows_unprotected: bool
) -> None:
    view = ClusterView()
    view.security.acls |= {keys.acl(record): record for record in map(record_of, acls)}
    authorizer = AclAuthorizer(view, allows_unprotected=allows_unprotected)
    for request in asked:
        decision = decide(request, acls, allow_without_acls=allows_unprotected)
        principal = parse_principal(request.principal)
        assert decision.is_allowed == authorizer.is_allowed(
            principal, request.host, request.operation, request.resource_type, request.name
        )
