"""Data that a simulated disk keeps and loses."""

from __future__ import annotations

import errno

import pytest
from penstock_simulation.disk import Disk
from penstock_simulation.files import SimFiles
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.process import Killed, Process
from penstock_simulation.world import World


class Place:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.machine = Machine(self.world, Network(self.world), "m")
        self.disk: Disk = self.machine.disk
        self.start()

    def start(self) -> SimFiles:
        self.process = Process(self.world, "p", self.machine)
        self.files = SimFiles(self.process)
        return self.files

    def crash(self) -> SimFiles:
        self.machine.lose_power()
        self.machine.boot()
        return self.start()


def make(files: SimFiles, path: str, data: bytes, *, sync: bool = True) -> None:
    file = files.open(path, create=True)
    file.append(data)
    if sync:
        file.sync()
        files.sync_dir(path.rpartition("/")[0] or "/")


def after_power_loss(seed: int, synced: bytes, unsynced: bytes) -> bytes:
    place = Place(seed)
    make(place.files, "/f", synced)
    place.files.open("/f").append(unsynced)
    return place.crash().read("/f")


def test_what_was_synced_survives_and_of_the_rest_any_pages_do() -> None:
    synced, unsynced = b"s" * 10_000, b"u" * 20_000
    found = [after_power_loss(seed, synced, unsynced) for seed in range(40)]
    assert all(data.startswith(synced) for data in found)
    assert synced in found
    assert synced + unsynced in found
    assert any(set(data[10_000:]) == {0, ord("u")} for data in found), "no hole was left by a lost page"
    assert any(synced < data < synced + unsynced for data in found)


def test_a_name_survives_once_its_directory_is_synced() -> None:
    found = set()
    for seed in range(40):
        place = Place(seed)
        file = place.files.open("/f", create=True)
        file.append(b"x")
        file.sync()
        found.add(place.crash().exists("/f"))
    assert found == {True, False}
    place = Place(0)
    make(place.files, "/f", b"x")
    assert place.crash().read("/f") == b"x"


def test_names_below_a_lost_directory_are_lost() -> None:
    found = set()
    for seed in range(40):
        place = Place(seed)
        place.files.make_dir("/d")
        make(place.files, "/d/f", b"x")
        files = place.crash()
        assert files.exists("/d") == files.exists("/d/f")
        found.add(files.exists("/d"))
    assert found == {True, False}


@pytest.mark.parametrize("seed", range(20))
def test_an_atomic_write_is_the_old_content_or_the_new_wherever_it_is_interrupted(seed: int) -> None:
    place = Place(seed)
    place.files.write_atomic("/f", b"old")
    place.files.fuse = seed % 8
    try:
        place.files.write_atomic("/f", b"new")
        assert place.crash().read("/f") == b"new"
    except Killed:
        assert place.crash().read("/f") in (b"old", b"new")


def test_a_killed_process_leaves_the_page_cache_and_touches_nothing_any_more() -> None:
    place = Place()
    make(place.files, "/f", b"cached", sync=False)
    place.files.lock("/lock")
    old = place.files
    file = old.open("/f")
    place.process.kill()
    for action in (
        lambda: file.append(b"x"),
        lambda: file.read_at(0, 1),
        lambda: old.open("/g", create=True),
        lambda: old.remove("/f"),
        lambda: old.write_atomic("/f", b""),
    ):
        with pytest.raises(Killed):
            action()
    files = place.start()
    assert files.read("/f") == b"cached"
    files.lock("/lock")
    with pytest.raises(BlockingIOError):
        SimFiles(Process(place.world, "q", place.machine)).lock("/lock")


def test_a_process_with_a_fuse_dies_in_the_middle_of_what_it_does() -> None:
    place = Place()
    file = place.files.open("/f", create=True)
    place.files.fuse = 2
    file.append(b"1")
    file.append(b"2")
    with pytest.raises(Killed):
        file.append(b"3")
    assert not place.process.alive
    assert place.start().read("/f") == b"12"


def test_a_sync_is_for_what_was_written_when_it_began() -> None:
    place = Place(next(seed for seed in range(50) if not kept_by_chance(Place(seed))))
    make(place.files, "/f", b"")
    file = place.files.open("/f")
    file.append(b"before")
    file.begin_sync()
    file.append(b"during")
    file.sync()
    assert place.crash().read("/f") == b"before"


def test_a_sync_that_was_interrupted_by_a_kill_does_not_limit_later_ones() -> None:
    place = Place(next(seed for seed in range(50) if not kept_by_chance(Place(seed))))
    make(place.files, "/f", b"")
    file = place.files.open("/f")
    file.append(b"1")
    file.begin_sync()
    file.append(b"2")
    place.process.kill()
    place.start().open("/f").sync()
    assert place.crash().read("/f") == b"12"


def kept_by_chance(place: Place) -> bool:
    """Whether this disk keeps any unsynced data at the next power loss."""
    return place.disk.rng.choice([0.0, 0.2, 0.5, 0.9, 1.0]) > 0


def test_a_full_disk_takes_what_fits_and_serves_again_when_there_is_room() -> None:
    place = Place()
    make(place.files, "/f", b"12345")
    place.disk.fill(3)
    assert place.files.free_bytes("/") == 3
    file = place.files.open("/f")
    with pytest.raises(OSError, match="space") as caught:
        file.append(b"abcdef")
    assert caught.value.errno == errno.ENOSPC
    assert place.files.read("/f") == b"12345abc"
    file.truncate(5)
    assert place.files.free_bytes("/") == 3
    file.write_at(0, b"54321")
    place.disk.empty()
    file.append(b"abcdef")
    assert place.files.read("/f") == b"54321abcdef"


def test_removing_and_replacing_files_gives_their_room_back() -> None:
    place = Place()
    make(place.files, "/f", b"12345")
    make(place.files, "/g", b"123")
    assert place.disk.used_bytes == 8
    place.files.rename("/g", "/f")
    assert place.disk.used_bytes == 3
    place.files.remove("/f")
    assert place.disk.used_bytes == 0


def test_a_failed_sync_fails_once_and_what_it_was_for_may_never_reach_the_disk() -> None:
    found = set()
    for seed in range(30):
        place = Place(seed)
        make(place.files, "/f", b"")
        file = place.files.open("/f")
        file.append(b"x")
        place.disk.failing_syncs = 1
        with pytest.raises(OSError, match="broken"):
            file.sync()
        assert place.files.read("/f") == b"x"
        file.sync()
        found.add(place.crash().read("/f"))
    assert found == {b"", b"x"}


def test_a_failed_write_says_so() -> None:
    place = Place()
    file = place.files.open("/f", create=True)
    place.disk.failing_writes = 1
    with pytest.raises(OSError, match="broken") as caught:
        file.append(b"x")
    assert caught.value.errno == errno.EIO
    file.append(b"y")
    assert place.files.read("/f") == b"y"


def test_files_and_directories_are_listed_renamed_and_removed_like_the_real_ones() -> None:
    files = Place().files
    files.make_dir("/a/b")
    make(files, "/a/f", b"1")
    make(files, "/a/b/g", b"2")
    assert sorted(files.list("/a")) == ["b", "f"]
    assert files.list("/nowhere") == []
    files.rename("/a", "/c")
    assert files.read("/c/b/g") == b"2"
    assert not files.exists("/a")
    files.remove_tree("/c")
    assert not files.exists("/c/b/g")
    assert not files.exists("/c")
    for action in (lambda: files.open("/c/f"), lambda: files.remove("/x"), lambda: files.sync_dir("/c")):
        with pytest.raises(FileNotFoundError):
            action()
