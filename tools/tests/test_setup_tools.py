"""The scripts behind `make setup`, `make lock` and CI: their checks and messages."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL_TOOLS = ("cat", "env", "mktemp", "rm", "sh", "tail")


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with stdout and stderr captured together."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        **options,
    )


class TestCheckLock:
    tool = runpy.run_path(str(ROOT / "tools" / "check_lock.py"))

    @pytest.mark.parametrize("name", ["requirements.lock", "tools/build.txt", "tools/uv.txt"])
    def test_what_is_locked_has_hashes_and_names_no_machine(self, name: str) -> None:
        text = (ROOT / name).read_text()
        assert self.tool["unhashed"](text) == []
        assert self.tool["traces"](text) == []

    @pytest.mark.parametrize(
        "line",
        [
            "--index-url https://packages.example/simple",
            "thing @ file:///srv/thing.whl",
            "--find-links /srv/wheels",
            "    # -r /srv/x",
        ],
    )
    def test_a_host_an_index_and_a_path_are_found(self, line: str) -> None:
        assert self.tool["traces"](f"good==1 \\\n    --hash=sha256:00\n{line}\n") == [line]

    def test_a_requirement_without_a_hash_is_found(self) -> None:
        assert self.tool["unhashed"]("good==1 \\\n    --hash=sha256:00\n    # via x\nbad==2\n") == ["bad==2"]


class TestCheckPython:
    script = ROOT / "tools" / "check_python.py"

    def test_the_interpreter_of_this_environment_will_do(self) -> None:
        assert run(sys.executable, self.script).returncode == 0

    def test_an_old_interpreter_is_refused_with_the_cure(self) -> None:
        tool = runpy.run_path(str(self.script))
        tool["problem"].__globals__["OLDEST"] = (99, 0)
        assert "needs 99.0 or newer" in tool["problem"]()
        assert "make PYTHON=" in tool["cure"]()

    def test_an_interpreter_without_ensurepip_is_refused_with_the_package_to_install(self, tmp_path: Path) -> None:
        (tmp_path / "ensurepip.py").write_text("raise ImportError('gone', name='ensurepip')\n")
        result = run(sys.executable, self.script, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert result.returncode == 1
        assert "ensurepip" in result.stdout
        assert "-venv" in result.stdout

    def test_an_environment_is_known_by_the_interpreter_that_made_it(self) -> None:
        assert run(sys.executable, self.script, "--made-by", sys.executable).returncode == 0
        assert run(sys.executable, self.script, "--made-by", "/nowhere/python").returncode == 1


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Return a PATH with little more than a shell."""
    for name in SHELL_TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tmp_path / name).symlink_to(found)
    return tmp_path


def command(bin_dir: Path, name: str, text: str) -> None:
    path = bin_dir / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class TestInstallKcat:
    def install(self, bin_dir: Path) -> subprocess.CompletedProcess[str]:
        return run(bin_dir / "sh", ROOT / "tools" / "install_kcat.sh", env={"PATH": str(bin_dir)})

    def test_nothing_happens_where_it_is_installed(self, bin_dir: Path) -> None:
        command(bin_dir, "kcat", "exit 0")
        result = self.install(bin_dir)
        assert (result.returncode, result.stdout) == (0, "")

    def test_root_installs_it_with_a_fresh_package_list_when_the_old_one_lacks_it(self, bin_dir: Path) -> None:
        made = bin_dir / "kcat"
        listed = bin_dir / "listed"
        command(bin_dir, "id", "echo 0")
        chmod = shutil.which("chmod")
        command(
            bin_dir,
            "apt-get",
            f'case "$1" in update) : > {listed};; '
            f"install) [ -e {listed} ] || exit 100; : > {made}; {chmod} +x {made};; esac",
        )
        result = self.install(bin_dir)
        assert result.returncode == 0, result.stdout
        assert made.exists()

    def test_without_root_it_ends_with_the_cure(self, bin_dir: Path) -> None:
        command(bin_dir, "id", "echo 1000")
        command(bin_dir, "apt-get", "exit 0")
        result = self.install(bin_dir)
        assert result.returncode == 1
        assert "sudo apt-get install kcat" in result.stdout

    def test_where_apt_fails_its_last_lines_are_shown_with_the_cure(self, bin_dir: Path) -> None:
        command(bin_dir, "id", "echo 0")
        command(bin_dir, "apt-get", "echo no such archive; exit 100")
        result = self.install(bin_dir)
        assert result.returncode == 1
        assert "no such archive" in result.stdout
        assert "Cure:" in result.stdout


class TestJava:
    """`penstock-spark java`, simulated by a script of the test."""

    def install(self, bin_dir: Path, spark: str) -> subprocess.CompletedProcess[str]:
        command(bin_dir, "penstock-spark", spark)
        script = ROOT / "tools" / "install_java.sh"
        return run(bin_dir / "sh", script, bin_dir / "penstock-spark", env={"PATH": str(bin_dir)})

    def test_nothing_happens_where_there_is_one(self, bin_dir: Path) -> None:
        result = self.install(bin_dir, "exit 0")
        assert (result.returncode, result.stdout) == (0, "")

    def test_root_gets_the_one_that_this_release_of_debian_has(self, bin_dir: Path) -> None:
        made = bin_dir / "java21"
        command(bin_dir, "id", "echo 0")
        command(bin_dir, "apt-get", f'case "$*" in *openjdk-21*) : > {made};; *) exit 100;; esac')
        result = self.install(bin_dir, f"[ -e {made} ] && [ $# -eq 1 ] && echo Java 21")
        assert result.returncode == 0, result.stdout
        assert result.stdout.splitlines()[-1] == "Java 21"

    @pytest.mark.parametrize("apt", ["", "exit 100"])
    def test_without_apt_it_goes_into_the_cache(self, bin_dir: Path, apt: str) -> None:
        command(bin_dir, "id", "echo 0")
        if apt:
            command(bin_dir, "apt-get", apt)
        result = self.install(bin_dir, '[ "${2-}" = --install ] && echo Java 21 in the cache')
        assert result.returncode == 0, result.stdout
        assert result.stdout.splitlines()[-1] == "Java 21 in the cache"

    def test_where_nothing_helps_the_cure_is_said(self, bin_dir: Path) -> None:
        command(bin_dir, "id", "echo 1000")
        result = self.install(bin_dir, "echo Get one with: apt install openjdk; exit 5")
        assert result.returncode == 5
        assert "Get one with:" in result.stdout


class TestContinuousIntegration:
    tools = tuple("bash cat cut dirname env grep make mktemp nice rm sh sleep tail timeout".split())
    java = ("javac", "mvn")
    steps = ("setup", "lint", "test", "demo", "java", "differential", "frameworks", "simulate")
    further = ("chaos", "chart", "e2e")
    summary = "=== 3 passed in 0.10s ==="

    def prepared(self, home: Path, recipes: Mapping[str, str], has_java: bool = True) -> dict[str, str]:
        """Create a checkout whose targets run only `recipes`. Return the environment for `.ci/run`."""
        (home / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", home / ".ci")
        bin_dir = home / "bin"
        bin_dir.mkdir()
        for name in self.tools:
            found = shutil.which(name)
            assert found is not None, name
            (bin_dir / name).symlink_to(found)
        for name in self.java if has_java else ():
            (bin_dir / name).symlink_to("/bin/sh")
        said = f"echo '{self.summary}'; exit 0"
        (home / "Makefile").write_text("".join(f"{n}:\n\t@{recipes.get(n, said)}\n" for n in self.steps + self.further))
        return {"PATH": str(bin_dir), "TMPDIR": str(home), "LOCAL_CLUSTER": str(home / "cluster")}

    def ci(self, tmp_path: Path, has_java: bool = True, failing: str = "") -> subprocess.CompletedProcess[str]:
        environment = self.prepared(tmp_path, {failing: f"echo '{self.summary}'; exit 1"}, has_java)
        return run("bash", tmp_path / ".ci" / "run", env=environment)

    def test_it_succeeds_when_each_step_does_and_closes_with_the_test_summary(self, tmp_path: Path) -> None:
        result = self.ci(tmp_path)
        assert result.returncode == 0, result.stdout
        assert result.stdout.splitlines()[-1] == self.summary
        assert result.stdout.count(self.summary) == len(self.steps) + 1, "what each step prints is shown"

    @pytest.mark.parametrize("step", ["lint", "test", "demo", "simulate", "java", "differential", "frameworks"])
    def test_one_failed_step_fails_it_and_the_others_still_run(self, tmp_path: Path, step: str) -> None:
        result = self.ci(tmp_path, failing=step)
        assert result.returncode == 1
        assert f"FAILED  make {step}" in result.stdout
        assert result.stdout.count("ok      make ") == 7

    def test_without_a_jdk_the_java_client_is_left_out_and_said_so(self, tmp_path: Path) -> None:
        result = self.ci(tmp_path, has_java=False)
        assert result.returncode == 0, result.stdout
        assert "left    make java" in result.stdout
        assert "left    make differential" in result.stdout

    def test_a_short_run_breaks_no_clusters(self, tmp_path: Path) -> None:
        environment = self.prepared(tmp_path, {}) | {"SHORT": "1"}
        result = run("bash", tmp_path / ".ci" / "run", env=environment)
        assert result.returncode == 0, result.stdout
        assert "left    make chaos (SHORT is set)" in result.stdout
        assert "left    make e2e (SHORT is set)" in result.stdout

    def test_where_there_is_no_local_cluster_that_is_said(self, tmp_path: Path) -> None:
        result = self.ci(tmp_path)
        assert result.returncode == 0, result.stdout
        assert f"left    make e2e (no local cluster: there is no {tmp_path}/cluster/up)" in result.stdout
        assert "left    make chaos (it needs root, and networks with iptables of its own)" in result.stdout

    def cluster(self, tmp_path: Path, up: str = ":") -> None:
        """Create scripts of a local cluster; its `up` runs this command."""
        (tmp_path / "cluster").mkdir()
        for name, does in (("up", up), ("down", ":")):
            script = tmp_path / "cluster" / name
            script.write_text(f"#!/bin/sh\n: > {tmp_path}/cluster/{name}.called\n{does}\n")
            script.chmod(0o755)

    def test_a_local_cluster_that_does_not_come_up_is_said_with_its_last_words(self, tmp_path: Path) -> None:
        environment = self.prepared(tmp_path, {})
        self.cluster(tmp_path, "echo no memory; exit 1")
        result = run("bash", tmp_path / ".ci" / "run", env=environment)
        assert result.returncode == 0, result.stdout
        assert "no memory" in result.stdout
        assert f"left    make e2e ({tmp_path}/cluster/up brought up no cluster)" in result.stdout

    @pytest.mark.parametrize("failing", ["", "exit 1"])
    def test_a_local_cluster_is_tested_on_and_taken_down(self, tmp_path: Path, failing: str) -> None:
        said = "echo $$CLUSTER, $${LOCAL_CLUSTER##*/}: cluster tests"
        environment = self.prepared(tmp_path, {"e2e": f"{said}; {failing}"})
        self.cluster(tmp_path, f'echo "$POLICIES" > {tmp_path}/policies')
        result = run("bash", tmp_path / ".ci" / "run", env=environment)
        assert (tmp_path / "policies").read_text() == "1\n", "NetworkPolicies are enforced from the start"
        assert "ok      make chart" in result.stdout
        assert "local, cluster: cluster tests" in result.stdout
        assert (result.returncode, "FAILED  make e2e" in result.stdout) == ((1, True) if failing else (0, False))
        assert (tmp_path / "cluster" / "down.called").exists()

    def test_nothing_runs_without_setup(self, tmp_path: Path) -> None:
        result = self.ci(tmp_path, failing="setup")
        assert result.returncode == 1
        assert "=== make lint" not in result.stdout

    def test_lint_simulation_and_image_builds_run_beside_the_tests(self, tmp_path: Path) -> None:
        """`make test` ends only after the others have started, and `make lint` only after `make test` has started."""
        recipes = {
            "test": f": > test; until [ -e simulate ] && [ -e images ]; do sleep 0.02; done; echo '{self.summary}'",
            "lint": "until [ -e test ]; do sleep 0.02; done",
            "simulate": ": > simulate",
        }
        environment = self.prepared(tmp_path, recipes)
        self.cluster(tmp_path)
        (tmp_path / "cluster" / "base").symlink_to("/bin/true")
        script = tmp_path / "tests" / "e2e" / "kubernetes" / "run.sh"
        script.parent.mkdir(parents=True)
        script.write_text('#!/bin/sh\necho "$@" > images\n')
        script.chmod(0o755)
        result = run("bash", tmp_path / ".ci" / "run", env=environment, timeout=60)
        assert result.returncode == 0, result.stdout
        assert (tmp_path / "images").read_text() == "--images\n"

    def test_the_cluster_starts_beside_the_frameworks_and_its_tests_run_after_them(self, tmp_path: Path) -> None:
        """`make frameworks` ends only after `make chart` has, and `make e2e` passes only after `make frameworks`."""
        recipes = {
            "chart": ": > chart",
            "frameworks": "until [ -e chart ]; do sleep 0.02; done; : > frameworks",
            "e2e": "[ -e frameworks ]",
        }
        environment = self.prepared(tmp_path, recipes)
        self.cluster(tmp_path, f"[ ! -e {tmp_path}/frameworks ]")
        result = run("bash", tmp_path / ".ci" / "run", env=environment, timeout=60)
        assert result.returncode == 0, result.stdout
        assert "ok      make e2e" in result.stdout

    def test_a_step_that_hangs_is_ended_and_has_failed(self, tmp_path: Path) -> None:
        environment = self.prepared(tmp_path, {"simulate": "exec sleep 1000"}) | {"STEP_LIMIT": "6"}
        result = run("bash", tmp_path / ".ci" / "run", env=environment, timeout=60)
        assert result.returncode == 1
        assert "FAILED  make simulate" in result.stdout
        assert result.stdout.count("ok      make ") == 7

    def test_what_the_steps_start_can_be_interrupted(self, tmp_path: Path) -> None:
        """In a shell without job control, background processes ignore SIGINT, which tests send to brokers."""
        recipe = "trap 'exit 0' INT; kill -INT $$$$; exit 1"
        result = run("bash", tmp_path / ".ci" / "run", env=self.prepared(tmp_path, dict.fromkeys(self.steps, recipe)))
        assert result.stdout.count("ok      make ") == 8, result.stdout

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_interrupted_run_leaves_nothing_behind(self, tmp_path: Path, number: signal.Signals) -> None:
        recipes = {name: f"echo $$$$ > {name}.pid; exec sleep 1000" for name in ("test", "lint")}
        environment = self.prepared(tmp_path, recipes)
        ci = subprocess.Popen(
            ["bash", str(tmp_path / ".ci" / "run")], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        pids = [self.pid(tmp_path / f"{name}.pid") for name in recipes]
        for name in recipes:  # the script has recorded its processes, too
            while not [note for note in tmp_path.glob(f"tmp.*/{name}.pid") if note.read_text().endswith("\n")]:
                continue
        ci.send_signal(number)
        assert ci.wait(60) == 130
        while any(Path(f"/proc/{pid}").exists() for pid in pids):  # a signal takes effect a moment later
            continue
        assert list(tmp_path.glob("tmp.*")) == []

    def pid(self, file: Path) -> int:
        """Return the process id that a step writes into the file."""
        while not (file.exists() and file.read_text().endswith("\n")):
            continue
        return int(file.read_text())
