"""Adds the options of a properties file to the connections of a job: `--options-file`. Called by the command line.

The file is the `spark.options` of a User's Secret, or one like it. The document gets references to its values, so that
`document` resolves them like others, and no problem shows a value.
"""

from __future__ import annotations

from pathlib import Path

from yaml.nodes import MappingNode, ScalarNode  # type: ignore[import-untyped]

from penstock.config.addresses import quoted
from penstock_spark.jobs.spec.document import Document, set_node
from penstock_spark.jobs.spec.problems import FilePosition, InvalidJob, Problem
from penstock_spark.jobs.spec.references import properties, read

CONNECTIONS = ("source", "to", "dead_letters")
"""Keys of a job with options of a connection, if they have `brokers`."""
BROKERS, OPTIONS, BOOTSTRAP = "brokers", "options", "kafka.bootstrap.servers"
PROTOCOL = "kafka.security.protocol"


def add_options(document: Document, path: Path) -> None:
    """Add the file's options to each connection that does not set `kafka.security.protocol` itself. Raises
    `InvalidJob`."""
    try:
        names = properties(read(path)).keys()
    except ValueError as e:
        raise InvalidJob([Problem(FilePosition(f"--options-file {path}", 1, 1), "", str(e))]) from None
    foreign = sorted(name for name in names if not name.startswith("kafka."))
    if foreign:
        message = f"unknown option {quoted(foreign[0])}; only options of connections (kafka.*) are allowed"
        raise InvalidJob([Problem(FilePosition(f"--options-file {path}", 1, 1), "", message)])
    for connection in CONNECTIONS:
        node = child(document.root, connection)
        if isinstance(node, MappingNode) and child(node, BROKERS) is not None:
            add_to(node, path, [name for name in names if name != BOOTSTRAP])


def add_to(connection: MappingNode, path: Path, names: list[str]) -> None:
    """Add references to the file's values to `options`; those that the job sets stay."""
    before = child(connection, OPTIONS)
    entries = list(before.value) if isinstance(before, MappingNode) else []
    present = {key.value for key, _ in entries}
    if PROTOCOL in present or (before is not None and not isinstance(before, MappingNode)):
        return  # for another cluster; or invalid, which `document` reports
    added = MappingNode("tag:yaml.org,2002:map", entries, connection.start_mark, connection.end_mark)
    for name in names:
        if name not in present:
            text = f"${{file:{path}:{name}}}"
            reference = ScalarNode("tag:yaml.org,2002:str", text, connection.start_mark, connection.end_mark)
            set_node(added, name, reference)
    set_node(connection, OPTIONS, added)


def child(node: MappingNode, key: str) -> object:
    """Return the value of a key, or None."""
    return next((value for name, value in node.value if name.value == key), None)
