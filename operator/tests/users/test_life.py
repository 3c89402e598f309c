"""A User gets its Secret, credential, ACLs and quotas, and keeps them while other clients change them."""

from __future__ import annotations

import pytest
from doubles.broker_failures import refused, timed_out
from users.user_kit import BILLS, CLUSTER, NS, ORDERS, READ_ORDERS, SCRAM, UserWorld

from penstock_operator.model.common import ObjectKey
from penstock_operator.model.user import ROTATE_PASSWORD
from penstock_operator.ports.access import AclEntry
from penstock_operator.ports.brokers import HIBERNATED, BrokersError
from penstock_operator.ports.kube import CLUSTERS, SECRETS, USERS, KubeError


async def ready(**spec: object) -> UserWorld:
    world = UserWorld()
    world.apply("ana", **spec)
    await world.run()
    return world


async def test_a_user_gets_a_secret_that_logs_in_and_the_rights_of_the_spec() -> None:
    world = await ready(
        acls=[READ_ORDERS, {"group": "bill", "prefix": True, "operations": ["All"]}],
        quotas={"producerByteRate": 1000, "requestPercentage": 50},
    )
    secret = world.secret()
    assert len(secret["password"]) == 32
    assert world.brokers.logs_in("ana", SCRAM, secret["password"])
    assert world.acls() == {ORDERS, AclEntry("GROUP", "PREFIXED", "bill", "ALL")}
    assert world.brokers.quotas_by_user["ana"] == {"producer_byte_rate": 1000.0, "request_percentage": 50.0}
    assert {world.condition(kind) for kind in ("Authentication", "Authorization", "Quotas")} == {("True", "Synced")}
    status = world.user().status
    assert (world.condition(), status.acls, status.principal) == (("True", "Ready"), 2, "User:ana")
    assert status.last_rotation is not None
    assert world.reasons == ["SecretCreated", "CredentialCreated", "AclsChanged", "QuotasChanged"]


async def test_nothing_is_written_while_nothing_changes() -> None:
    world = await ready(acls=[READ_ORDERS], quotas={"producerByteRate": 1})
    changed, written = list(world.brokers.changes), sum(world.kube.changes.values())
    world.brokers.calls.clear()
    for _ in range(3):
        await world.resync()
    assert world.brokers.calls == {"credentials": 3, "acls": 3, "quotas": 3}
    world.restart()
    await world.resync()
    assert (world.brokers.changes, sum(world.kube.changes.values())) == (changed, written)
    assert world.errors == []


async def test_what_the_spec_no_longer_lists_is_revoked() -> None:
    world = await ready(acls=[READ_ORDERS], quotas={"producerByteRate": 1})
    world.apply("ana", acls=[{"topic": "bills", "operations": ["Read"]}])
    await world.run()
    assert (world.acls(), world.brokers.quotas_by_user["ana"]) == ({BILLS}, {})


# Passwords


async def test_the_annotation_replaces_the_password_once() -> None:
    world = await ready()
    before, rotated = world.secret()["password"], world.user().status.last_rotation
    world.time += 100
    for _ in range(2):
        world.apply("ana", annotations={ROTATE_PASSWORD: "monday"})
        await world.run()
        await world.resync()
    now = world.secret()["password"]
    assert now != before
    assert world.brokers.logs_in("ana", SCRAM, now)
    assert world.brokers.changes.count("set_credential") == 2
    assert world.user().status.last_rotation != rotated
    assert world.reasons.count("PasswordChanged") == 1


async def test_a_password_is_not_lost_when_the_operator_stops_before_the_brokers_have_it() -> None:
    world = await ready()
    world.brokers.fail_for("set_credential", "ana", timed_out(), times=2)
    world.apply("ana", annotations={ROTATE_PASSWORD: "monday"})
    await world.run(0.5)
    secret = world.secret()["password"]
    assert not world.brokers.logs_in("ana", SCRAM, secret)
    assert world.condition("Authentication") == ("False", "Retrying")
    world.restart()
    await world.run(10)
    assert world.secret()["password"] == secret
    assert world.brokers.logs_in("ana", SCRAM, secret)


async def test_a_password_that_a_user_writes_into_the_secret_becomes_the_credential() -> None:
    world = await ready()
    rotated = world.user().status.last_rotation
    world.time += 100
    world.write_secret("ana", password='o"ne=two', own="kept")
    await world.resync()
    assert world.brokers.logs_in("ana", SCRAM, 'o"ne=two')
    secret = world.secret()
    assert "sasl.password=" + 'o"ne=two' in secret["client.properties"]
    assert secret["own"] == "kept"
    assert world.user().status.last_rotation != rotated


@pytest.mark.parametrize("password", ["", "two\nlines", " outside", "x" * 257, "back\\slash", "Österreich"])
async def test_a_password_that_files_cannot_carry_is_refused_and_the_credential_stays(password: str) -> None:
    world = await ready()
    before = world.secret()["password"]
    world.write_secret("ana", password=password)
    await world.resync()
    assert world.condition("Authentication") == ("False", "InvalidPassword")
    assert world.brokers.logs_in("ana", SCRAM, before)
    world.write_secret("ana", password="a-better-one")
    await world.run(30)
    assert world.condition() == ("True", "Ready")


async def test_a_credential_that_another_client_replaced_is_restored_without_a_rotation() -> None:
    world = await ready()
    rotated = world.user().status.last_rotation
    for iterations in (4096, 8192):
        world.brokers.passwords["ana"] = {SCRAM: ("stolen", iterations), "SCRAM-SHA-256": ("stolen", iterations)}
        await world.resync()
        assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])
        assert "SCRAM-SHA-256" not in world.brokers.passwords["ana"]
    del world.brokers.passwords["ana"]
    await world.resync()
    assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])
    assert world.reasons.count("CredentialRestored") == 3
    assert world.user().status.last_rotation == rotated


async def test_an_existing_secret_is_read_and_never_written() -> None:
    world = UserWorld()
    reference = {"passwordSecretRef": {"name": "vault", "key": "kafka"}}
    world.apply("ana", authentication={"type": "scram-sha-256", **reference})
    await world.run()
    assert world.condition() == ("False", "SecretNotFound")
    world.write_secret("vault", kafka="from-the-vault")
    version = world.kube.read(SECRETS, NS, "vault")
    await world.run(30)
    assert world.brokers.logs_in("ana", "SCRAM-SHA-256", "from-the-vault")
    assert world.secret()["password"] == "from-the-vault"
    assert world.condition() == ("True", "Ready")
    assert world.kube.read(SECRETS, NS, "vault") == version
    world.write_secret("vault", kafka="another")
    await world.resync()
    assert world.brokers.logs_in("ana", "SCRAM-SHA-256", "another")


async def test_a_secret_of_another_owner_is_not_touched() -> None:
    world = UserWorld()
    world.write_secret("ana", password="of-another")
    before = world.kube.read(SECRETS, NS, "ana")
    world.apply("ana", acls=[READ_ORDERS])
    await world.run()
    assert world.kube.read(SECRETS, NS, "ana") == before
    assert world.brokers.passwords == {}
    assert (world.condition(), world.condition("Authorization")) == (("False", "SecretConflict"), ("True", "Synced"))
    world.kube.remove(SECRETS, NS, "ana")
    await world.run(30)
    assert world.condition() == ("True", "Ready")


async def test_a_secret_that_is_written_between_reading_and_writing_is_not_overwritten() -> None:
    world = await ready()
    world.kube.put(SECRETS, {"metadata": {"name": "c-ca", "namespace": NS}, "data": {"ca.crt": "UEVN"}})
    real = world.kube.patch

    async def patch_late(*arguments: object) -> object:
        world.kube.patch = real  # type: ignore[method-assign]
        world.write_secret("ana", password="just-now")
        return await real(*arguments)  # type: ignore[arg-type]

    world.kube.patch = patch_late  # type: ignore[method-assign,assignment]
    await world.resync()
    await world.run(10)
    assert world.brokers.logs_in("ana", SCRAM, "just-now")
    assert world.secret()["ca.crt"] == "PEM"


async def test_a_lost_secret_is_made_again_with_another_password() -> None:
    world = await ready()
    before = world.secret()["password"]
    world.kube.remove(SECRETS, NS, "ana")
    await world.resync()
    assert world.secret()["password"] != before
    assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])


async def test_files_speak_tls_while_the_cluster_has_a_ca() -> None:
    world = await ready()
    assert "security.protocol=SASL_PLAINTEXT" in world.secret()["client.properties"]
    world.kube.put(SECRETS, {"metadata": {"name": "c-ca", "namespace": NS}, "data": {"ca.crt": "UEVN"}})
    await world.resync()
    secret = world.secret()
    assert secret["ca.crt"] == "PEM"
    assert "security.protocol=SASL_SSL" in secret["client.properties"]
    assert "ssl.ca.location=/etc/penstock/user/ca.crt" in secret["client.properties"]
    world.kube.remove(SECRETS, NS, "c-ca")
    await world.resync()
    assert "ca.crt" not in world.secret()
    assert world.brokers.changes == ["set_credential"]


# Users that something else authenticates


@pytest.mark.parametrize(
    ("spec", "principal"),
    [
        ({"authentication": {"type": "tls"}}, "User:CN=ana"),
        ({"authentication": {"type": "tls"}, "userName": "CN=ana,O=shop"}, "User:CN=ana,O=shop"),
        ({"authentication": {"type": "oauth"}, "userName": "a1b2"}, "User:a1b2"),
        ({"authentication": {"type": "external"}, "principalType": "Group", "userName": "ops"}, "Group:ops"),
    ],
)
async def test_rights_without_a_credential(spec: dict[str, object], principal: str) -> None:
    world = await ready(**spec, acls=[READ_ORDERS])
    assert world.acls(principal) == {ORDERS}
    assert world.condition("Authentication") == ("True", "External")
    assert (world.condition(), world.brokers.passwords) == (("True", "Ready"), {})
    assert world.kube.read(SECRETS, NS, "ana") is None
    assert world.user().status.secret is None


async def test_another_type_of_authentication_removes_the_credential_of_the_former() -> None:
    world = await ready(userName="ana")
    world.apply("ana", userName="ana", authentication={"type": "scram-sha-256"})
    await world.run()
    assert list(world.brokers.passwords["ana"]) == ["SCRAM-SHA-256"]
    world.apply("ana", userName="ana", authentication={"type": "tls"})
    await world.run()
    assert world.brokers.passwords["ana"] == {}
    assert world.condition() == ("True", "Ready")
    world.brokers.passwords["ana"] = {SCRAM: ("made by another", 4096)}
    await world.resync()
    assert world.brokers.logs_in("ana", SCRAM, "made by another")


# Changes by other clients, and adoption


async def test_acls_and_quotas_that_another_client_changed_are_reverted() -> None:
    world = await ready(acls=[READ_ORDERS], quotas={"producerByteRate": 5})
    world.brokers.acls_by_principal["User:ana"] = {BILLS}
    world.brokers.acls_by_principal["User:bob"] = {BILLS}
    world.brokers.quotas_by_user["ana"] = {"producer_byte_rate": 9.0, "consumer_byte_rate": 1.0}
    await world.resync()
    assert (world.acls(), world.acls("User:bob")) == ({ORDERS}, {BILLS})
    assert world.brokers.quotas_by_user["ana"] == {"producer_byte_rate": 5.0}


async def test_an_adopted_user_keeps_the_rights_that_it_had_until_the_spec_lists_them() -> None:
    world = UserWorld()
    world.brokers.acls_by_principal["User:ana"] = {BILLS}
    world.brokers.quotas_by_user["ana"] = {"consumer_byte_rate": 1.0}
    world.apply("ana", acls=[READ_ORDERS])
    await world.run()
    assert "Adopted" in world.reasons
    assert world.user().status.kept_acls == ("ALLOW READ on TOPIC bills",)
    world.restart()
    await world.resync()
    assert (world.acls(), world.brokers.quotas_by_user["ana"]) == ({ORDERS, BILLS}, {"consumer_byte_rate": 1.0})
    for topics in (["orders", "bills"], ["orders"]):
        world.apply("ana", acls=[{"topic": topic, "operations": ["Read"]} for topic in topics])
        await world.run()
    assert (world.acls(), world.user().status.kept_acls) == ({ORDERS}, ())


async def test_an_acl_of_the_spec_is_revoked_even_if_the_operator_stopped_right_after_granting_it() -> None:
    world = UserWorld()
    world.kube.fail("patch_status", KubeError(500, "InternalError", "etcd is away"), times=1)
    world.apply("ana", acls=[READ_ORDERS])
    await world.run(0.1)
    assert world.acls() == {ORDERS}
    world.restart()
    world.apply("ana", acls=[])
    await world.run(10)
    assert world.acls() == set()


async def test_no_right_is_granted_before_the_owner_is_recorded() -> None:
    world = UserWorld()
    world.kube.fail("create", KubeError(403, "Forbidden", "configmaps is forbidden"), times=1)
    world.apply("ana", acls=[READ_ORDERS], authentication={"type": "external"})
    await world.run(1)
    assert (world.brokers.changes, world.condition()) == ([], ("False", "Refused"))
    await world.run(120)
    assert (world.acls(), world.condition()) == ({ORDERS}, ("True", "Ready"))


# Failures


async def test_parts_fail_independently() -> None:
    world = UserWorld()
    world.brokers.fail_for("create_acls", "User:ana", refused("INVALID_REQUEST", "no such host"), times=1)
    world.apply("ana", acls=[READ_ORDERS], quotas={"producerByteRate": 1})
    await world.run()
    assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])
    assert world.brokers.quotas_by_user["ana"] == {"producer_byte_rate": 1.0}
    assert world.condition("Authorization") == world.condition() == ("False", "Refused")
    assert "no such host" in world.message()
    assert "Refused" in world.reasons
    await world.run(70)
    assert world.condition() == ("True", "Ready")


async def test_without_an_authorizer_a_user_with_acls_is_not_ready_and_says_why() -> None:
    world = UserWorld()
    world.brokers.has_authorizer = False
    world.apply("ana", acls=[READ_ORDERS])
    world.apply("bob")
    await world.run()
    assert (world.condition(), world.condition(name="bob")) == (("False", "SecurityDisabled"), ("True", "Ready"))
    assert "authorizer.class.name" in world.message()
    assert world.brokers.logs_in("ana", SCRAM, world.secret()["password"])
    world.brokers.has_authorizer = True
    await world.resync()
    assert (world.acls(), world.condition()) == ({ORDERS}, ("True", "Ready"))


async def test_a_short_outage_is_not_written_and_a_long_one_is() -> None:
    world = await ready(acls=[READ_ORDERS])
    world.brokers.unreachable = timed_out()
    await world.controller.resync()
    await world.run(10)
    assert world.condition() == ("True", "Ready")
    await world.run(30)
    assert world.condition() == ("Unknown", "Unreachable")
    assert world.user().status.acls == 1
    world.brokers.mend()
    await world.run(30)
    assert world.condition() == ("True", "Ready")


async def test_a_user_of_a_hibernated_cluster_keeps_its_figures_and_says_why() -> None:
    world = await ready(acls=[READ_ORDERS])
    world.brokers.unreachable = BrokersError('Cluster "c" is hibernated', code=HIBERNATED)
    await world.controller.resync()
    await world.run(1)
    assert world.condition() == ("Unknown", "ClusterHibernated")
    assert "is hibernated" in world.message()
    assert world.user().status.acls == 1
    world.brokers.mend()
    await world.controller.resync()
    await world.run(1)
    assert world.condition() == ("True", "Ready")


async def test_brokers_that_refuse_to_answer_are_reported_at_once_with_their_error() -> None:
    world = await ready()
    world.brokers.unreachable = refused("CLUSTER_AUTHORIZATION_FAILED", "the operator is not a super user")
    await world.controller.resync()
    await world.run(1)
    assert world.condition() == ("Unknown", "Unreachable")
    assert "the operator is not a super user" in world.message()


async def test_no_password_is_shown_anywhere_but_in_the_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    passwords = ["first-Passw0rd", "second-Passw0rd\n", "third-Passw0rd"]
    world = UserWorld()
    world.write_secret("vault", password=passwords[0])
    world.apply("ana", authentication={"passwordSecretRef": {"name": "vault"}}, acls=[READ_ORDERS])
    world.apply("bob")
    await world.run()
    passwords += [world.secret("bob")["password"], world.secret("bob")["fingerprint-key"]]
    world.write_secret("vault", password=passwords[1])
    await world.resync()
    world.write_secret("vault", password=passwords[2])
    echoed = KubeError(422, "Invalid", f"Secret is invalid: {passwords[2]}")
    world.kube.fail("patch", echoed, resource=SECRETS)
    await world.resync()
    world.brokers.fail_for("set_credential", "ana", refused("UNACCEPTABLE_CREDENTIAL", "no"), times=1)
    await world.run(70)
    world.delete("ana")
    world.delete("bob")
    await world.run()
    objects = [body for (resource, _, _), body in world.kube.stored.items() if resource != SECRETS]
    written = capsys.readouterr()
    shown = repr((objects, world.kube.recorded, world.errors)) + written.out + written.err
    assert "InvalidPassword" in shown
    assert "Refused" in shown
    for password in passwords:
        assert password.strip() not in shown


async def test_secrets_that_the_operator_may_not_read_are_named_with_the_cure() -> None:
    world = UserWorld()
    world.kube.forbidden.add(SECRETS)
    world.apply("ana", acls=[READ_ORDERS])
    await world.run()
    assert (world.condition(), world.acls()) == (("False", "Refused"), {ORDERS})
    assert "Role get, create and patch on secrets" in world.message()


async def test_a_user_waits_for_its_cluster() -> None:
    world = UserWorld()
    world.gateways.clear()
    world.apply("ana")
    await world.run()
    assert world.condition() == ("Unknown", "ClusterNotFound")


async def test_a_cluster_that_becomes_ready_wakes_its_users() -> None:
    world = await ready()
    world.due.clear()
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    world.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {}, "status": status})
    assert ObjectKey("User", NS, "ana") in world.due


async def test_the_older_of_two_objects_owns_the_user() -> None:
    world = await ready(acls=[READ_ORDERS])
    world.apply("second", userName="ana", acls=[{"topic": "bills", "operations": ["Read"]}])
    await world.run()
    assert (world.condition(name="second"), world.acls()) == (("False", "Conflict"), {ORDERS})
    world.delete("ana")
    await world.run(30)
    assert (world.condition(name="second"), world.acls()) == (("True", "Ready"), {BILLS})
    assert world.brokers.logs_in("ana", SCRAM, world.secret("second")["password"])
    assert "delete_credential" not in world.brokers.changes


async def test_a_paused_object_changes_nothing_and_retains_its_user() -> None:
    world = await ready(acls=[READ_ORDERS])
    world.apply("ana", acls=[], paused=True, annotations={ROTATE_PASSWORD: "now"})
    before = list(world.brokers.changes)
    await world.run()
    assert (world.condition("Authorization"), world.condition()) == (("False", "Paused"), ("False", "Paused"))
    world.delete("ana")
    await world.run()
    assert (world.brokers.changes, world.acls()) == (before, {ORDERS})


async def test_an_invalid_object_is_reported_and_ignored() -> None:
    world = UserWorld()
    world.apply("ana", acls=[{"topic": "a", "group": "b", "operations": ["Read"]}])
    await world.run()
    status = (world.kube.read(USERS, NS, "ana") or {})["status"]
    assert status["conditions"][0]["reason"] == "InvalidSpec"
    assert "spec.acls[0]: set exactly one of" in status["conditions"][0]["message"]
    assert world.brokers.changes == []
