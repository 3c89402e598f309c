"""The fuzzed surfaces: each draws an input, and fails unless it leads to success or a one-line error message."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from penstock.cli.produce import ProduceOptions, parse_line
from penstock.config.sources import ENVIRONMENT_PREFIX
from penstock_fuzz import documents
from penstock_fuzz.arguments import argument_lists, commands
from penstock_fuzz.programs import Programs
from penstock_fuzz.values import texts, words
from penstock_spark.jobs.run.plans import plan
from penstock_spark.jobs.spec import references
from penstock_spark.jobs.spec.document import build_job, parse, set_value
from penstock_spark.jobs.spec.problems import InvalidJob

FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "latin-1": "name: größe\n".encode("latin-1"),
    "nul": b"kind: archive\0\n",
    "large": b"# " + b"x" * (1 << 20),
    "deep.yaml": b"[" * 5_000,
    "deep.toml": b"a = " + b"[" * 5_000,
    "settings.toml": b"num.partitions = 3\n[log]\nretention.hours = 48\n",
    "00000000000000000000.log": b"\0" * 61,
    "00000000000000000000.index": b"\x01" * 17,
    "archive.yaml": documents.EXAMPLES[0],
}
SHARES = {"penstock": 7, "penstock_spark": 4, "job_files": 7, "settings": 3, "json_lines": 2, "references": 1}
"""Share of each surface in 24 inputs."""

Surface = Callable[[st.DataObject], None]


class Surfaces:
    """The surfaces by name, with the files that arguments may name."""

    def __init__(self, folder: Path) -> None:
        self.programs = Programs()
        self.folder = folder
        for name, content in FILES.items():
            (folder / name).write_bytes(content)
        (folder / "directory").mkdir()
        unreadable = folder / "unreadable"
        unreadable.write_bytes(b"x")
        unreadable.chmod(0)
        odd = os.fsdecode(b"not-utf-8-\xff")
        (folder / odd).write_bytes(b"x")
        names = [*FILES, "directory", "unreadable", odd, "missing", "empty/below-a-file", "directory/new"]
        self.files = st.sampled_from([str(folder / name) for name in names])
        self.commands = list(commands(self.programs.penstock))
        self.spark_commands = list(commands(self.programs.spark))

    def __enter__(self) -> Surfaces:
        return self

    def __exit__(self, *_: object) -> None:
        self.programs.close()

    def by_name(self) -> dict[str, Surface]:
        return {name: getattr(self, name) for name in SHARES}

    def penstock(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.commands))
        arguments = data.draw(argument_lists(command, self.files))
        self.programs.run(command.path, arguments).check()

    def penstock_spark(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.spark_commands))
        arguments = data.draw(argument_lists(command, self.files))
        self.programs.run_spark(command.path, arguments).check()

    def job_files(self, data: st.DataObject) -> None:
        text = data.draw(documents.yamls)
        sets = data.draw(st.lists(st.tuples(words, texts).map("=".join) | texts, max_size=1))
        with suppress(InvalidJob):
            document = parse(text, "job.yaml")
            for assignment in sets:
                set_value(document, assignment)
            assert plan(build_job(document)).lines

    def settings(self, data: st.DataObject) -> None:
        path = self.folder / "fuzz.toml"
        path.write_bytes(data.draw(documents.tomls))
        given = data.draw(documents.settings)
        variables = {
            ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): value
            for name, value in data.draw(documents.settings).items()
        }
        arguments = [f"--set={name}={value}".replace("\0", "") for name, value in given.items()]
        if data.draw(st.booleans()):
            arguments.append(f"--config={path}")
        self.programs.run(("up",), arguments, {k: v for k, v in variables.items() if possible(k, v)}).check()

    def json_lines(self, data: st.DataObject) -> None:
        with suppress(ValueError):
            parse_line(data.draw(documents.lines), ProduceOptions("json", None, None, None, ()))

    def references(self, data: st.DataObject) -> None:
        references.properties(data.draw(documents.properties))
        text = data.draw(texts)
        with suppress(ValueError):
            references.check_references(text)
        path = self.folder / "secret.properties"
        path.write_bytes(data.draw(st.binary(max_size=40)))
        with suppress(ValueError):
            references.Resolver(os.environ).resolve(f"${{file:{path}:{data.draw(words)}}}")


def possible(name: str, value: str) -> bool:
    """Whether the system accepts it as an environment variable."""
    try:
        os.fsencode(name), os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return "\0" not in name + value and "=" not in name and len(name) > 0
