"""Decides which failures of a query are transient, so that a restart may succeed. Called by `supervisor` and `audit`.

Spark passes Python exceptions through the JVM as text, so their class names are searched in it. Errors that are known
to be permanent end the job; all others are retried a bounded number of times. A restart from a checkpoint is harmless.
"""

from __future__ import annotations

import re

PERMANENT = (
    # Of this package: a user must change something.
    "InvalidOption",
    "InvalidJob",
    "DataLoss",
    "CorruptBatch",
    "Undecodable",
    "ForeignCheckpoint",
    "FolderConflict",
    "TableMismatch",
    "TableConflict",
    "RepeatedBatchGrew",
    "Refused",
    "RowsRejected",
    "BadRow",
    "BatchDiffers",
    # Of Spark: the query is invalid.
    "AnalysisException",
    "ParseException",
    "IllegalArgumentException",
    "SparkArithmeticException",
    "SparkNumberFormatException",
    "SparkDateTimeException",
    "USER_RAISED_EXCEPTION",
    "DATATYPE_MISMATCH",
    "UNRESOLVED_COLUMN",
    "MALFORMED_RECORD_IN_PARSING",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA",
    "DELTA_",
    # Of Python: a bug, or a missing package.
    "AssertionError",
    "ModuleNotFoundError",
    "ImportError",
    "TypeError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "SchemaMismatchError",
)
PATTERN = re.compile("|".join(rf"(?<![A-Za-z]){re.escape(name)}" for name in PERMANENT))
CAUSE = re.compile(r"(?:penstock_spark|penstock)\.[A-Za-z_.]*\.(?P<name>[A-Z][A-Za-z]+): (?P<text>[^\n]+)")
RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<text>[^\n]+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\s*\n)*(?P<text>\S[^\n]*)")
READING = re.compile(r"\[FAILED_READ_FILE[^\]]*\] (?P<text>Encountered error while reading file \S+)\.\s")
GONE = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
"""Errors of py4j and of its sockets once the JVM has ended."""
MAX_TEXT = 2_000


def may_pass(error: BaseException | str) -> bool:
    """Return whether a restart may succeed. The last error of this project in the text decides: earlier ones were
    handled and appear only as the context of later ones."""
    text = named(error)
    ours = list(CAUSE.finditer(text))
    return PATTERN.search(ours[-1]["name"] if ours else text) is None


def named(error: BaseException | str) -> str:
    """Return an error's text, prefixed with its class name. Spark's text names exceptions of its workers; exceptions of
    this process are known by class only."""
    if isinstance(error, str):
        return error
    found = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return "\n".join([found, *(f"{type(e).__qualname__}: {e}" for e in behind_reading(error))])


def behind_reading(error: BaseException | str) -> list[BaseException]:
    """Return the causes of a failed file read, which Spark's message does not include."""
    found: list[BaseException] = []
    if READING.search(str(error)):
        e: BaseException | None = getattr(error, "_cause", None)
        while e is not None:
            if not READING.search(f"{e} "):
                found.append(e)
            e = getattr(e, "_cause", None)
    return found


def is_gone(error: BaseException) -> bool:
    """Return whether Spark's JVM has ended, so that no restart in this process can succeed."""
    chain: list[BaseException | None] = [error, error.__cause__, error.__context__]
    return any(type(e).__name__ in GONE for e in chain if e is not None)


def cause(error: BaseException | str) -> str:
    """Return the message that explains the error: this project's if there is one, else the first line of Spark's."""
    text = str(error)
    for pattern in (CAUSE, RAISED):
        found = list(pattern.finditer(text))
        if found:
            return found[-1]["text"].strip()[:MAX_TEXT]
    if (reading := READING.search(text)) is not None:
        why = [" ".join(str(e).split()) for e in behind_reading(error)]
        return ": ".join([reading["text"], *why])[:MAX_TEXT]
    tracebacks = list(TRACEBACK.finditer(text))
    if tracebacks:  # the last one is the worker's, which has the reason
        return tracebacks[-1]["text"].strip()[:MAX_TEXT]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:MAX_TEXT]
