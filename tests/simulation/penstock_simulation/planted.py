"""Plants a known bug into the broker as it runs in this process, to see that the checker catches it.

The bugs of one broker are those of tests/faults: a line of the broker's source and what to write in its place. There a
copy of the source is changed; here the changed source is compiled, and functions get its code for as long as the bug is
planted. The bugs of a cluster are in `cluster_bugs`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))

from penstock_faults.catalogue import FAULTS
from penstock_faults.planting import FaultError

import penstock

RUNNING = Path(penstock.__file__).parent
"""The package as it was imported."""


@dataclass(frozen=True)
class Edit:
    """Text of a file below broker/penstock, which stands there exactly once, and what to write in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """What the broker does wrong with it (`says`), and the edits that make it do so."""

    name: str
    says: str
    edits: tuple[Edit, ...]


BUGS: dict[str, Bug] = {
    fault.name: Bug(fault.name, fault.says, (Edit(fault.file, fault.old, fault.new),)) for fault in FAULTS
}
"""Those of one broker."""

CAUGHT = (
    "acknowledged-when-written",
    "fsync-skipped",
    "high-watermark-unflushed",
    "duplicate-answered-early",
    "duplicates-undetected",
    "producers-not-replayed",
    "snapshot-not-written",
    "commit-before-store",
    "directories-unsynced",
    "fsync-error-ignored",
    "torn-tail-kept",
    "partial-write-kept",
)
"""The bugs that the simulation claims to catch."""


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The broker has the bug meanwhile. Raises FaultError where it cannot be planted."""
    with contextlib.ExitStack() as stack:
        for file in dict.fromkeys(edit.file for edit in bug.edits):
            stack.enter_context(changed_file(bug, file))
        yield


def changed_text(bug: Bug, file: str) -> str:
    """The file's text with the bug in it."""
    text = (RUNNING / file).read_text()
    for edit in bug.edits:
        if edit.file == file:
            if (count := text.count(edit.old)) != 1:
                raise FaultError(f"{bug.name}: the text to replace stands {count} times in broker/penstock/{file}")
            text = text.replace(edit.old, edit.new)
    return text


@contextlib.contextmanager
def changed_file(bug: Bug, file: str) -> Iterator[None]:
    module = importlib.import_module(module_name(file))
    changed = types.ModuleType(module.__name__)
    changed.__file__ = module.__file__
    changed.__package__ = module.__package__
    before = sys.modules[module.__name__]
    sys.modules[module.__name__] = changed  # dataclasses look for their module there
    try:
        exec(compile(changed_text(bug, file), str(module.__file__), "exec"), changed.__dict__)
    finally:
        sys.modules[module.__name__] = before
    swapped: list[tuple[types.FunctionType, types.CodeType]] = []
    new = dict(functions(changed))
    for place, function in functions(module):
        other = new.get(place)
        if other is not None and differs(function.__code__, other.__code__):
            swapped.append((function, function.__code__))
            function.__code__ = other.__code__
    if not swapped:
        raise FaultError(f"{bug.name}: no function of penstock/{file} has the changed code")
    try:
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def module_name(file: str) -> str:
    return "penstock." + file.removesuffix(".py").replace("/", ".")


def differs(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two functions do different things, wherever they stand in the file."""
    if a.co_code != b.co_code or a.co_names != b.co_names or len(a.co_consts) != len(b.co_consts):
        return True
    for x, y in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(x, types.CodeType):
            if not isinstance(y, types.CodeType) or differs(x, y):
                return True
        elif x != y:
            return True
    return False


def functions(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions and methods that a module defines, by their place in it."""
    for name, value in vars(module).items():
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield name, value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, member in vars(value).items():
                function = underlying(member)
                if function is not None:
                    yield f"{name}.{inner}", function


def underlying(member: Any) -> types.FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member if isinstance(member, types.FunctionType) else None
