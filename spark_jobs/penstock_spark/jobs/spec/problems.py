"""Problems of a job file with file, line, column and key. Called by the modules that read and check it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_spark.model.errors import PenstockSparkError


class FilePosition(NamedTuple):
    """A position in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(NamedTuple):
    """A problem. `key` is the path in the file (`source.topics`), empty for the whole file."""

    place: FilePosition
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"


class InvalidJob(PenstockSparkError):
    """An invalid job file; `problems` has all problems in file order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an invalid job has a problem"
        self.problems = sorted(problems, key=lambda p: p.place)
        super().__init__("\n".join(map(str, self.problems)))


class FieldError(ValueError):
    """Raised by the checks of a struct. Holds the struct's field and the keys below it that lead to the problem."""

    def __init__(self, field: str, message: str, *within: str) -> None:
        super().__init__(message)
        self.keys = (field, *within)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint to append to a message; empty if no known word is similar."""
    near = difflib.get_close_matches(word.lower(), list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""
