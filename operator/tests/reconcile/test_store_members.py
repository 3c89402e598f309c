"""Members of the companion etcd, by endpoints and member list."""

from __future__ import annotations

from reconcile.cluster_tables import cluster
from reconcile.test_store_changes import SET, URLS, listed, state

from penstock_operator.ports.state_store import StateStoreMember
from penstock_operator.specs import companion


def test_members_that_are_left_in_the_list_are_known_by_their_addresses() -> None:
    _, members = state(3, (*map(listed, range(3)), listed(4)))
    assert [(m.ordinal, m.endpoint, m.is_wanted, m.is_healthy) for m in members] == [
        (0, URLS[0], True, True),
        (1, URLS[1], True, True),
        (2, URLS[2], True, True),
        (4, URLS[4], False, True),
    ]


def test_members_with_other_addresses_are_none_of_the_stateful_set() -> None:
    found = cluster(etcd={"endpoints": URLS[:3], "managed": True, "statefulSet": SET})
    others = ["http://p-etcd-3.other.svc:2380", "https://p-etcd-3.ns.svc:2380", "http://p-etcd-3.ns.svc:1", "x"]
    assert companion.surplus_endpoints(found, others) == {}
    assert companion.surplus_endpoints(found, ["http://p-etcd-3.ns.svc:2380"]) == {3: URLS[3]}


def test_a_member_is_incomplete_until_it_votes() -> None:
    def incomplete(*more: StateStoreMember) -> list[int]:
        _, members = state(3, (listed(0), listed(1), *more))
        return [member.ordinal for member in members if member.is_incomplete]

    assert incomplete() == [2]
    assert incomplete(listed(2, name="", is_learner=True)) == [2]
    assert incomplete(listed(2, is_learner=True)) == [2]
    assert incomplete(listed(2)) == []


def test_the_number_of_required_pods_is_read_with_care() -> None:
    for text, number in (("5", 5), ("", 0), ("-1", 0), ("1000", 0), ("x", 0)):
        assert companion.required_pods({"metadata": {"annotations": {companion.PODS: text}}}) == number
    assert companion.required_pods(None) == 0
