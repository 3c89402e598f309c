"""Logs are lines of JSON or text, including those of the standard library."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from penstock.runtime.logging import configure, get_logger


class FixedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_123

    def boot_ms(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    configure()
    root.handlers = handlers


def test_elsewhere_than_on_a_terminal_each_line_is_a_json_document() -> None:
    out = io.StringIO()
    configure("info", "auto", out, FixedClock())
    get_logger("penstock.test").info("started", port=9092, path={1: "not a string key"})
    assert json.loads(out.getvalue()) == {
        "event": "started",
        "level": "info",
        "source": "penstock.test",
        "port": 9092,
        "path": {"1": "not a string key"},
        "timestamp": "2023-11-14T22:13:20.123Z",
    }


def test_text_is_one_line_without_colour_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    configure("info", "text", out, FixedClock())
    get_logger("penstock.test").warning("slow disk", waited_ms=12)
    assert "slow disk" in out.getvalue()
    assert "waited_ms=12" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\n") == 1


def test_lines_below_the_level_are_left_out_also_of_loggers_made_before() -> None:
    log, out = get_logger("penstock.test"), io.StringIO()
    configure("warning", "json", out, FixedClock())
    log.info("no")
    log.warning("yes")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["yes"]


def test_warnings_of_libraries_join_the_stream() -> None:
    out = io.StringIO()
    configure("info", "json", out, FixedClock())
    logging.getLogger("asyncio").warning("%s took long", "something")
    logging.getLogger("asyncio").info("not logged")
    (line,) = out.getvalue().splitlines()
    assert (json.loads(line)["event"], json.loads(line)["source"]) == ("something took long", "asyncio")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_client_that_sends_no_http_is_no_error(level: str) -> None:
    out = io.StringIO()
    configure(level, "json", out, FixedClock())
    try:
        raise BadHttpMessage("no method")
    except BadHttpMessage:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["level"], "exception" in line) for line in lines] == ([("debug", False)] if level == "debug" else [])


def test_an_exception_comes_with_its_traceback() -> None:
    out = io.StringIO()
    configure("info", "json", out, FixedClock())
    try:
        raise ValueError("the reason")
    except ValueError:
        get_logger("penstock.test").exception("failed")
    assert "ValueError: the reason" in json.loads(out.getvalue())["exception"]


def test_an_unknown_level_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match='unknown log level "loud"'):
        configure("loud")
