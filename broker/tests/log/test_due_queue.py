"""A queue by due time with removal, which keeps no reference to removed items."""

from __future__ import annotations

import gc
import random
import weakref

from penstock.log.due_queue import SPARE, DueQueue


class Item:
    """An object that supports weak references."""


def test_items_come_in_the_order_of_their_times_and_only_when_due() -> None:
    queue: DueQueue[str] = DueQueue()
    for item, due_ms in [("c", 30), ("a", 10), ("b", 20)]:
        queue.put(item, due_ms)
    assert queue.first_ms() == 10
    assert [queue.pop_due(20), queue.pop_due(20), queue.pop_due(20)] == ["a", "b", None]
    assert (len(queue), queue.due_ms("c"), queue.due_ms("a")) == (1, 30, None)


def test_an_item_that_is_put_again_is_due_at_its_new_time_only() -> None:
    queue: DueQueue[str] = DueQueue()
    queue.put("a", 10)
    queue.put("a", 50)
    assert queue.pop_due(49) is None
    assert queue.pop_due(50) == "a"
    assert queue.pop_due(100) is None


def test_what_was_removed_is_let_go_at_once_without_the_garbage_collector() -> None:
    queue: DueQueue[Item] = DueQueue()
    item = Item()
    alive = weakref.ref(item)
    gc.disable()
    try:
        queue.put(item, 10)
        queue.put(item, 5)
        queue.discard(item)
        del item
        assert alive() is None
    finally:
        gc.enable()
    assert queue.first_ms() is None


def test_the_heap_does_not_grow_with_what_was_removed() -> None:
    queue: DueQueue[int] = DueQueue()
    for number in range(10_000):
        queue.put(number, 1_000_000 + number)
        queue.put(number, number)
        queue.discard(number)
        assert len(queue.heap) <= SPARE + 1
    for number in range(100):
        queue.put(number, random.Random(number).randrange(1000))
        queue.put(number, number)
    assert len(queue.heap) <= 2 * 100 + SPARE
    assert [queue.pop_due(99) for _ in range(100)] == list(range(100))
