"""What is wrong with a job's file, and where: file, line, column, key. Called by the rooms that read and check it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_spark.model.errors import PenstockSparkError


class FilePosition(NamedTuple):
    """Lines and columns count from 1, as editors do."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(NamedTuple):
    """`key` is the path in the file (`source.topics`), empty for the file as a whole."""

    place: FilePosition
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"


class InvalidJob(PenstockSparkError):
    """A job's file is wrong; `problems` has all that was found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an invalid job has a problem"
        self.problems = sorted(problems, key=lambda p: p.place)
        super().__init__("\n".join(map(str, self.problems)))


class FieldError(ValueError):
    """Raised by a struct's own checks: names the field of the struct that is wrong, and the keys within it that lead to
    what is wrong there."""

    def __init__(self, field: str, message: str, *within: str) -> None:
        super().__init__(message)
        self.keys = (field, *within)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to put behind a message, empty where nothing is near."""
    near = difflib.get_close_matches(word.lower(), list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""
