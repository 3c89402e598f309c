"""A deletion together with a namespace or CRD does not count as a user's request."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from doubles.kube import FakeKube

from penstock_operator.engine import absence
from penstock_operator.engine.absence import KeptOwners, are_lists_conclusive, is_being_torn_down
from penstock_operator.ports.kube import TOPICS, KubeError

NS = "ns"


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


async def is_down(kube: FakeKube) -> bool:
    return await is_being_torn_down(kube, "Topic", NS, "main")


async def test_an_object_that_went_alone_is_told_from_one_that_went_with_the_rest(kube: FakeKube) -> None:
    assert not await is_down(kube)
    assert kube.writes == 0, "the creation was only tried"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("terminating", NS),
        ("missing_namespaces", NS),
        ("crds_terminating", TOPICS),
        ("crds_gone", TOPICS),
    ],
)
async def test_the_namespace_or_the_definition_is_being_taken_down(
    kube: FakeKube, attribute: str, value: object
) -> None:
    getattr(kube, attribute).add(value)
    assert await is_down(kube)


async def test_what_is_refused_as_invalid_could_have_been_created(kube: FakeKube) -> None:
    kube.fail("dry_run", KubeError(422, "Invalid", "spec: Invalid value"))
    assert not await is_down(kube)


@pytest.mark.parametrize("status", [403, 429, 500])
async def test_an_answer_that_tells_nothing_is_passed_on(kube: FakeKube, status: int) -> None:
    kube.fail("dry_run", KubeError(status, "Whatever", "no"))
    with pytest.raises(KubeError):
        await is_down(kube)


@pytest.mark.parametrize(
    ("cluster", "counts"),
    [
        (None, False),
        ({"creationTimestamp": "2026-03-01T11:49:59Z"}, True),
        ({"creationTimestamp": "2026-03-01T11:50:01Z"}, False),
        ({"creationTimestamp": "2026-03-01T13:00:00Z"}, False),
        ({"creationTimestamp": "2020-01-01T00:00:00Z", "deletionTimestamp": "2026-03-01T11:00:00Z"}, False),
        ({"creationTimestamp": "long ago"}, False),
        ({"name": "c"}, False),
    ],
)
def test_lists_prove_something_only_of_a_cluster_that_has_been_there_for_a_while(
    cluster: dict[str, str] | None, counts: bool
) -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()
    assert are_lists_conclusive(None if cluster is None else {"metadata": cluster}, now) == counts


def test_owners_are_forgotten_when_there_are_too_many_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "MAX_KEPT_OWNERS", 2)
    kept = KeptOwners()
    for uid in ("a", "b", "c"):
        kept.add(uid)
    assert [uid in kept for uid in ("a", "b", "c")] == [False, True, True]
