"""Consumer groups in kubectl: discovered with their lag, and reset once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from penstock_kubernetes.kubectl import eventually
from penstock_kubernetes.release import GROUPS, Make, Release

SHOWN_S = 20
"""Time in which a change is visible: two polls of the operator and the pause between two writes of a lag."""


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("groups")
    release.install()
    lines = "".join(f"{number}\n" for number in range(100))
    release.penstock("topic", "create", "numbers", "--partitions", "2")
    release.penstock("produce", "numbers", stdin=lines)
    return release


def lag(release: Release, name: str) -> int | None:
    found = release.kubectl.status(GROUPS, name).get("lag")
    return None if found is None else int(found)


def is_left_with(release: Release, name: str, records: int) -> bool:
    """Whether the group has no members and this lag."""
    status = release.kubectl.status(GROUPS, name)
    return status.get("lag") == records and status.get("state") == "Empty"


def test_a_group_appears_by_itself_with_its_lag_in_time(release: Release) -> None:
    release.penstock("consume", "numbers", "--group", "readers", "--count", "40")
    eventually("the lag is shown", lambda: is_left_with(release, "readers", 60), SHOWN_S)
    print(release.kubectl("get", GROUPS))
    found = release.kubectl.get(GROUPS, "readers") or {}
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Cluster"
    assert [t["topic"] for t in found["status"]["topics"]] == ["numbers"]


def test_its_lag_follows_what_it_reads_and_what_comes(release: Release) -> None:
    release.penstock("consume", "numbers", "--group", "readers")
    eventually("all is read", lambda: lag(release, "readers") == 0, SHOWN_S)
    release.penstock("produce", "numbers", stdin="100\n101\n")
    eventually("the lag grows by two", lambda: lag(release, "readers") == 2, SHOWN_S)


def happens(query: Callable[[], bool]) -> bool:
    """Whether `query` becomes true within `SHOWN_S`."""
    try:
        eventually("it happens", query, SHOWN_S)
    except AssertionError:
        return False
    return True


def test_a_steady_state_writes_nothing(release: Release) -> None:
    def version() -> str:
        return str((release.kubectl.get(GROUPS, "readers") or {})["metadata"]["resourceVersion"])

    # The status contains the age of unread records, so the group reads all of them.
    release.penstock("consume", "numbers", "--group", "readers")
    eventually("all is read", lambda: is_left_with(release, "readers", 0), SHOWN_S)
    before = version()
    assert not happens(lambda: version() != before)


def test_a_reset_is_planned_done_once_and_never_again(release: Release) -> None:
    reset = {"id": "one", "to": "earliest"}
    release.kubectl.apply(release.group("readers", reset=reset))
    eventually("the reset is done", lambda: done(release, "readers") == ("one", "Done"), 60)
    eventually("the lag is all", lambda: lag(release, "readers") == 102, SHOWN_S)
    release.penstock("consume", "numbers", "--group", "readers")
    eventually("all is read again", lambda: lag(release, "readers") == 0, SHOWN_S)
    release.kubectl("delete", GROUPS, "readers")
    # The operator creates one too, possibly between the read and the write of `kubectl apply`.
    eventually("it is applied", lambda: release.kubectl.apply(release.group("readers", reset=reset)), 10)
    release.kubectl.wait(GROUPS, "readers")
    assert not happens(lambda: lag(release, "readers") not in (None, 0))


def done(release: Release, name: str) -> tuple[str, str]:
    reset = release.kubectl.status(GROUPS, name).get("reset") or {}
    return reset.get("id", ""), reset.get("phase", "")


def test_a_group_that_nobody_made_yet_is_absent_and_stays(release: Release) -> None:
    release.kubectl.apply(release.group("later"))
    release.kubectl.wait(GROUPS, "later")
    assert release.kubectl.status(GROUPS, "later")["state"] == "Absent"


def test_a_group_of_any_name_is_shown_under_one_that_kubernetes_allows(release: Release) -> None:
    release.penstock("consume", "numbers", "--group", "Team A/readers!", "--count", "1")

    def query() -> list[str]:
        shown = release.kubectl.list(GROUPS)
        return [g["metadata"]["name"] for g in shown if g["spec"].get("groupId") == "Team A/readers!"]

    assert eventually("it is shown", query, SHOWN_S)


def test_a_discovered_group_goes_when_the_group_goes(release: Release) -> None:
    release.penstock("consume", "numbers", "--group", "passing", "--count", "1")
    eventually("it is shown", lambda: release.kubectl.get(GROUPS, "passing"), SHOWN_S)
    release.penstock("group", "delete", "passing", "--yes")
    eventually("it is gone", lambda: not release.kubectl.get(GROUPS, "passing"), 90)


def test_a_share_group_has_its_settings_and_its_backlog_is_a_metric(release: Release) -> None:
    config = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    start = {"topics": ["numbers"], "at": "earliest"}
    release.kubectl.apply(release.group("workers", type="share", config=config, startingOffsets=start))
    eventually("the backlog is all", lambda: lag(release, "workers") == count_records(release), SHOWN_S)
    status = release.kubectl.status(GROUPS, "workers")
    assert (status["type"], status["configured"]) == ("share", sorted(config))
    lines = release.operator_metrics().splitlines()
    (line,) = [line for line in lines if line.startswith("penstock_operator_group_lag{") and '"workers"' in line]
    assert float(line.rpartition(" ")[2]) == count_records(release)


def count_records(release: Release) -> int:
    """Return the number of records in the topic."""
    return len(release.penstock("consume", "numbers", "--from-beginning").splitlines())
