"""Which failures of a query may pass, so that it is worth to start again from the checkpoint. Called by `running`.

Spark hands Python's exceptions through the JVM as text: their names are found in it. What is known to last ends the
job; everything else is tried again, a bounded number of times: starting again from a checkpoint does no harm.
"""

from __future__ import annotations

import re

LASTING = (
    # Of this package: somebody has to change something.
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
    "RowsRefused",
    "BadRow",
    "BatchDiffers",
    # Of Spark: the query is wrong.
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
    # Of Python: a bug, or a package that lacks.
    "AssertionError",
    "ModuleNotFoundError",
    "ImportError",
    "TypeError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "SchemaMismatchError",
)
PATTERN = re.compile("|".join(rf"(?<![A-Za-z]){re.escape(name)}" for name in LASTING))
CAUSE = re.compile(r"(?:penstock_spark|penstock)\.[A-Za-z_.]*\.(?P<name>[A-Z][A-Za-z]+): (?P<text>[^\n]+)")
RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<text>[^\n]+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\s*\n)*(?P<text>\S[^\n]*)")
READING = re.compile(r"\[FAILED_READ_FILE[^\]]*\] (?P<text>Encountered error while reading file \S+)\.\s")
GONE = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
"""What py4j raises, in its own name or the socket's."""
MAX_TEXT = 2_000


def may_pass(error: BaseException | str) -> bool:
    """Whether another start may succeed. Where one of this project's errors is told, the last one decides: those before
    it were handled, and are there because Python tells of them too."""
    text = named(error)
    ours = list(CAUSE.finditer(text))
    return PATTERN.search(ours[-1]["name"] if ours else text) is None


def named(error: BaseException | str) -> str:
    """An error's text with the name of its class before it. Spark's text names what was raised in its workers; what was
    raised here is named by its class alone."""
    if isinstance(error, str):
        return error
    found = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return "\n".join([found, *(f"{type(e).__qualname__}: {e}" for e in behind_reading(error))])


def behind_reading(error: BaseException | str) -> list[BaseException]:
    """Where a file could not be read, why: Spark says so in causes behind its error alone."""
    found: list[BaseException] = []
    if READING.search(str(error)):
        e: BaseException | None = getattr(error, "_cause", None)
        while e is not None:
            if not READING.search(f"{e} "):
                found.append(e)
            e = getattr(e, "_cause", None)
    return found


def is_gone(error: BaseException) -> bool:
    """Whether Spark's JVM does not answer any more: then no start in this process can succeed."""
    chain: list[BaseException | None] = [error, error.__cause__, error.__context__]
    return any(type(e).__name__ in GONE for e in chain if e is not None)


def cause(error: BaseException | str) -> str:
    """The sentence that says what is wrong: ours where there is one, else the first line of Spark's."""
    text = str(error)
    for pattern in (CAUSE, RAISED):
        found = list(pattern.finditer(text))
        if found:
            return found[-1]["text"].strip()[:MAX_TEXT]
    if (reading := READING.search(text)) is not None:
        why = [" ".join(str(e).split()) for e in behind_reading(error)]
        return ": ".join([reading["text"], *why])[:MAX_TEXT]
    tracebacks = list(TRACEBACK.finditer(text))
    if tracebacks:  # the last is of the innermost: the driver's says that a worker failed, the worker's says why
        return tracebacks[-1]["text"].strip()[:MAX_TEXT]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:MAX_TEXT]
