"""A resync visits every object, a bounded number at a time."""

from __future__ import annotations

from penstock_operator.engine.rotation import Rotation


def test_every_object_has_its_turn_and_none_is_twice_in_one() -> None:
    rotation = Rotation(2)
    turns = [rotation.next_turn("abc") for _ in range(3)]
    assert turns == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert Rotation(5).next_turn("abc") == ["a", "b", "c"]


def test_a_list_that_became_shorter_goes_on() -> None:
    rotation = Rotation(3)
    rotation.next_turn("abcde")
    assert rotation.next_turn("ab") == ["b", "a"]
    assert rotation.next_turn("") == []
