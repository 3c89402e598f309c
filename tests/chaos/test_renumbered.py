"""The check distinguishes a record that its client renumbered from one that a broker wrote twice."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from penstock_chaos.checks import findings
from penstock_chaos.history import Told
from penstock_chaos.renumbered import Numbering, numberings, renumbered
from penstock_simulation.history import Content, Write

P = ("orders", 0)
CONTENT = Content(P, 0, 4, [(0, b"a"), (1, b"b"), (2, b"b"), (3, b"c")])
FIRST = Numbering(0, 7, 0)


def test_producers_are_read_from_the_log(tmp_path: Path) -> None:
    def batch(base: int, producer_id: int, epoch: int) -> bytes:
        rest = bytes(11) + pack(">i", 1) + bytes(16) + pack(">qh", producer_id, epoch) + b"records"
        return pack(">qi", base, len(rest)) + rest

    (tmp_path / f"{0:020}.log").write_bytes(batch(0, 7, 0) + batch(2, 7, 1) + batch(4, -1, -1))
    assert numberings(tmp_path) == [FIRST, Numbering(2, 7, 1), Numbering(4, -1, -1)]


def test_a_record_that_comes_again_in_a_later_epoch_of_its_producer_was_numbered_anew() -> None:
    assert renumbered(CONTENT, [FIRST, Numbering(2, 7, 1)]) == {2}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([FIRST, Numbering(2, 7, 0)], id="the same epoch: it was written twice"),
        pytest.param([FIRST, Numbering(2, 8, 1)], id="another producer"),
        pytest.param([Numbering(0, -1, -1), Numbering(2, -1, -1)], id="no client numbered it"),
        pytest.param([Numbering(0, 7, 1), Numbering(2, 7, 0)], id="an earlier epoch, which is to be fenced"),
        pytest.param([], id="nothing is known of the log"),
    ],
)
def test_other_repetitions_are_the_brokers(found: list[Numbering]) -> None:
    assert renumbered(CONTENT, found) == set()


def test_only_what_was_numbered_anew_is_no_finding() -> None:
    told = Told()
    values = sorted({value for _, value in CONTENT.records})
    told.history.writes = [Write("p", P, number, value) for number, value in enumerate(values)]
    told.history.contents = [CONTENT]
    assert "duplicated" in {found.kind for found in findings(told)}
    assert "duplicated" not in {found.kind for found in findings(told, {P: {2}})}
