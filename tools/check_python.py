"""Reject an interpreter that cannot create the virtual environment, and name the fix.

`make` runs this with the configured interpreter, whatever its age, so the syntax must be valid in Python 2.7.
"""

import subprocess
import sys

OLDEST = (3, 11)


def problem():
    if sys.version_info[:2] < OLDEST:
        return "it is Python %d.%d, and Penstock needs %d.%d or newer" % (sys.version_info[:2] + OLDEST)
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return "it lacks the module '%s' that makes virtual environments" % error.name
    return None


def cure():
    if sys.version_info[:2] < OLDEST:
        return "install a newer one and name it: make PYTHON=/path/to/python3.12 setup"
    return (
        "on Debian and Ubuntu: apt-get install python%d.%d-venv (or python3-venv);"
        " or name another interpreter: make PYTHON=/path/to/python3.12 setup" % sys.version_info[:2]
    )


def made_by(python):
    """Return whether `python` runs and has this interpreter's version and build."""
    ask = "import sys, pip; print(sys.version)"
    try:
        found = subprocess.check_output([python, "-c", ask], stderr=subprocess.STDOUT)
    except (OSError, subprocess.CalledProcessError):
        return False
    return found.decode().strip() == sys.version.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--made-by"]:
        sys.exit(0 if made_by(sys.argv[2]) else 1)
    what = problem()
    if what is not None:
        sys.stderr.write("make: %s does not do: %s.\nCure: %s\n" % (sys.executable, what, cure()))
        sys.exit(1)
