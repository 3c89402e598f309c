"""The search for secrets finds them in each form in which programs write them, and fails the test that wrote one."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography_kit import server_context
from secrets_kit import MIN_LENGTH, found, secret
from token_kit import token

HERE = Path(__file__).parent
VALUE = secret("kit-pw-'\"-0c4e")
CASES = {
    "captured": f"print('password', {VALUE!r})",
    "log": f"secrets_kit.search('broker.log', {VALUE!r})",
    "none": "secrets_kit.search('broker.log', 'ready')",
}


@pytest.mark.parametrize("before", ["", "a", "ab", "\0user\0"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
def test_a_secret_within_base64_is_found(before: str, after: str) -> None:
    assert found("log", base64.b64encode(f"{before}{VALUE}{after}".encode()))


@pytest.mark.parametrize("text", [f"x{VALUE}y", VALUE.encode().hex(), f"\n{VALUE}".encode()])
def test_other_forms_are_found(text: str | bytes) -> None:
    assert found("log", text)


def test_a_finding_names_source_and_line() -> None:
    (only,) = found("broker.log", f"one\ntwo {VALUE}\nthree")
    assert only.startswith("broker.log, line 2: ")
    assert only.endswith(repr(f"two {VALUE}"))


def test_private_keys_tokens_and_scram_keys_are_found_without_registration(tmp_path: Path) -> None:
    server_context(tmp_path)
    key = (tmp_path / "server.pem").read_text()
    for text in (key, json.dumps(key), f"Bearer {token()}", "Record(stored_key=b'\\x00')"):
        assert found("log", text), text


def test_what_names_a_secret_without_its_value_is_not_found() -> None:
    for text in ("expected -----BEGIN PRIVATE KEY-----", "stored_key: 64 bytes", "password [hidden]", "eyJh.x.y"):
        assert not found("log", text), text


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(AssertionError, match="too short"):
        secret("x" * (MIN_LENGTH - 1))


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_the_test_during_which_a_secret_was_written_fails(case: str, tmp_path: Path) -> None:
    body = ["import secrets_kit", f"secrets_kit.secret({VALUE!r})", f"def test_it():\n    {CASES[case]}", ""]
    (tmp_path / "test_it.py").write_text("\n".join(body))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "secrets_kit", "-p", "no:cacheprovider", "test_it.py"]
    environment = {"PYTHONPATH": str(HERE), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is (case == "none"), done.stdout
    assert ("secrets were written" in done.stdout) is (case != "none")
