"""Faults of authentication, authorization and quotas: each opens the broker to a client that it must refuse."""

from __future__ import annotations

from penstock_faults.planting import Fault

API = "broker/tests/api/"
TABLE, DATA_RIGHTS = API + "authorization/test_table.py::", API + "authorization/test_data_rights.py::"
AUTHENTICATION = API + "test_authentication.py::"
AUTHORIZER = "broker/tests/security/test_authorizer.py::"
SCRAM, TOKEN = "broker/tests/security/sasl/test_scram.py::", "broker/tests/security/sasl/test_token.py::"
CONTEXTS = "broker/tests/server/tls/test_contexts.py::"

SECURITY = (
    Fault(
        name="api-without-rights",
        says="DeleteRecords is served without DELETE on the topic",
        file="api/authorization/table.py",
        old="    ApiKey.DELETE_RECORDS: topics(DELETE_TOPIC, administrative=True),\n",
        new="    ApiKey.DELETE_RECORDS: ApiRules(is_administrative=True),\n",
        caught_by=(TABLE + "test_each_api_requires_these_rights",),
    ),
    Fault(
        name="acls-created-with-describe",
        says="ACLs can be created without ALTER on the cluster",
        file="api/authorization/table.py",
        old="    ApiKey.CREATE_ACLS: cluster(ALTER_CLUSTER,",
        new="    ApiKey.CREATE_ACLS: cluster(DESCRIBE_CLUSTER,",
        caught_by=(TABLE + "test_each_api_requires_these_rights",),
    ),
    Fault(
        name="deny-ignored",
        says="an ACL that denies has no effect beside one that allows",
        file="security/acl_authorizer.py",
        old="                    if not acl.is_allow:\n                        return False\n",
        new="                    if not acl.is_allow:\n                        continue\n",
        caught_by=(AUTHORIZER + "test_a_denial_takes_precedence_over_any_permission",),
    ),
    Fault(
        name="host-ignored",
        says="an ACL for one host applies to clients of all hosts",
        file="security/acl_authorizer.py",
        old=" or not acl.covers(operation) or not acl.host.matches(host):\n",
        new=" or not acl.covers(operation):\n",
        caught_by=(AUTHORIZER + "test_an_acl_for_a_host_applies_to_clients_of_this_host_only",),
    ),
    Fault(
        name="super-user-by-prefix",
        says="a user whose name starts with that of a super user may do everything",
        file="security/acl_authorizer.py",
        old="        return not self.super_users.isdisjoint(principal.identities)\n",
        new="        return any(each.startswith(tuple(self.super_users)) for each in principal.identities)\n",
        caught_by=(AUTHORIZER + "test_only_the_whole_principal_is_that_of_a_super_user",),
    ),
    Fault(
        name="outdated-acls-decide",
        says="a broker that may lack changes of ACLs decides by those it has",
        file="security/acl_authorizer.py",
        old="        return self.is_confirmed() or self.is_super_user(principal)\n",
        new="        return True\n",
        caught_by=(DATA_RIGHTS + "test_a_broker_with_outdated_acls_closes_the_connections_of_users",),
    ),
    Fault(
        name="revoked-right-kept",
        says="a fetch session reads partitions after READ was revoked (CVE-2024-27309)",
        file="api/fetch_rights.py",
        old="        if target.authorized == authorizer.generation:\n",
        new="        if target.authorized:\n",
        caught_by=(DATA_RIGHTS + "test_cve_2024_27309_a_fetch_session_does_not_outlive_its_right",),
    ),
    Fault(
        name="revoked-right-awaited",
        says="a waiting fetch gets the records that arrive after READ was revoked",
        file="api/fetch_rights.py",
        old="        if self.waiting and self.task is None:\n",
        new="        if False:\n",
        caught_by=(DATA_RIGHTS + "test_cve_2024_27309_a_fetch_that_waits_is_answered_when_its_right_is_removed",),
    ),
    Fault(
        name="nonce-uncompared",
        says="a SCRAM client may answer with another nonce (CVE-2024-56128)",
        file="security/sasl/scram.py",
        old='not returned.startswith("r=") or not hmac.compare_digest(returned[2:].encode(), nonce.encode()):\n',
        new='not returned.startswith("r="):\n',
        caught_by=(SCRAM + "test_cve_2024_56128_a_final_message_with_another_nonce_is_rejected",),
    ),
    Fault(
        name="proof-unverified",
        says="SCRAM accepts any proof of a user that exists",
        file="security/sasl/scram.py",
        old="        if not (is_proven and self._is_known and current == credential):\n",
        new="        if not (self._is_known and current == credential):\n",
        caught_by=(SCRAM + "test_a_wrong_password_and_an_unknown_user_are_rejected_for_the_same_reason",),
    ),
    Fault(
        name="other-identity-authorized",
        says="a SCRAM user may claim the identity of another one (CVE-2017-12610)",
        file="security/sasl/scram.py",
        old='    if authzid and (not authzid.startswith("a=") or authzid[2:] != name[2:]):\n',
        new="    if False:\n",
        caught_by=(SCRAM + "test_cve_2017_12610_an_authorization_identity_must_equal_the_name",),
    ),
    Fault(
        name="unsigned-token-accepted",
        says="a token without a signature is accepted",
        file="security/sasl/token.py",
        old="        header = parse_header(token)\n        keys",
        new='        if token.endswith("."):\n'
        '            return self._identity(parse_claims(base64.urlsafe_b64decode(token.split(".")[1] + "==")))\n'
        "        header = parse_header(token)\n        keys",
        caught_by=(TOKEN + "test_a_token_without_a_signature_or_of_another_algorithm_is_rejected",),
    ),
    Fault(
        name="audience-unchecked",
        says="a token for another service is accepted",
        file="security/sasl/token.py",
        old='        if rules.audiences and not set(rules.audiences) & texts_of(claims.get("aud")):\n',
        new="        if False:\n",
        caught_by=(TOKEN + "test_a_token_of_another_issuer_or_for_another_audience_is_rejected",),
    ),
    Fault(
        name="issuer-unchecked",
        says="a token of another issuer is accepted",
        file="security/sasl/token.py",
        old='        if rules.issuer is not None and claims.get("iss") != rules.issuer:\n',
        new="        if False:\n",
        caught_by=(TOKEN + "test_a_token_of_another_issuer_or_for_another_audience_is_rejected",),
    ),
    Fault(
        name="principal-changes",
        says="a re-authentication may change the principal of a connection",
        file="api/authentication.py",
        old="        if self.session is not None and not principal.is_same_as(connection.peer.principal):\n",
        new="        if False:\n",
        caught_by=(AUTHENTICATION + "test_re_authentication_must_not_change_the_principal",),
    ),
    Fault(
        name="session-never-ends",
        says="a client goes on after its credentials have expired",
        file="api/authentication.py",
        old="        elif self.ends_at_s is not None and authenticator.clock.now_s() >= self.ends_at_s:\n",
        new="        elif False:\n",
        caught_by=(AUTHENTICATION + "test_the_lifetime_is_the_shorter_of_setting_and_token",),
    ),
    Fault(
        name="certificate-optional",
        says="ssl.client.auth=required accepts clients without a certificate",
        file="server/tls/contexts.py",
        old='"required": ssl.CERT_REQUIRED}\n',
        new='"required": ssl.CERT_OPTIONAL}\n',
        caught_by=(CONTEXTS + "test_a_client_certificate_is_asked_for_as_configured",),
    ),
    Fault(
        name="mapping-ignored",
        says="the principal of a certificate is its whole name, whatever ssl.principal.mapping.rules says",
        file="server/tls/listener_tls.py",
        old="        return self.mapping.principal(rfc2253_text(subject))\n",
        new='        return parse_mapping_rules("DEFAULT").principal(rfc2253_text(subject))\n',
        caught_by=(CONTEXTS + "test_mapping_rules_apply_on_ssl_listeners_only",),
    ),
    Fault(
        name="never-resumed",
        says="a throttled connection is never read again",
        file="server/throttled.py",
        old="                connection.resume(PAUSED_FOR_QUOTA)\n",
        new="",
        caught_by=(
            "broker/tests/server/test_throttled.py::"
            "test_the_response_leaves_first_and_the_next_request_waits_for_its_time",
        ),
    ),
    Fault(
        name="exempt-by-client-id",
        says="a client with the client id of a broker has no quotas",
        file="api/metering.py",
        old="        if client_id.startswith(BROKER_CLIENT_IDS) and self.may_be_broker(connection.peer):\n",
        new="        if client_id.startswith(BROKER_CLIENT_IDS):\n",
        caught_by=(
            "broker/tests/api/test_metering.py::test_a_default_quota_does_not_throttle_the_connections_of_brokers",
        ),
    ),
)
