"""Requests to the Kubernetes API server that delete the executors of a driver's earlier run in the same pod."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from client_doubles.certificates import Authority

from penstock_spark.jobs.examples import example
from penstock_spark.jobs.run.leftovers import CA_FILE, TOKEN_FILE, Unreachable, remove

pytestmark = pytest.mark.integration

MINE = socket.gethostname()
"""Name of the pod, which equals its hostname."""
DRIVER = "spark.kubernetes.driver.pod.name"
PODS = "/api/v1/namespaces/queue/pods"
EXECUTORS = f"{PODS}?labelSelector=spark-role%3Dexecutor"
LIMIT_S = 120


def pod(name: str, *owners: str) -> dict[str, Any]:
    owned = {"ownerReferences": [{"kind": "Pod", "name": "it", "uid": uid} for uid in owners]} if owners else {}
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "labels": {"a": "b"}, **owned}}


class ApiServer:
    """Serves pods over TLS to clients with the token; records deletions."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, Any] = {f"{PODS}/{MINE}": pod(MINE), EXECUTORS: {"items": []}}
        self.deleted: SimpleQueue[str] = SimpleQueue()
        authority = Authority(folder)
        signed = authority.sign("server")
        self.token, self.ca = folder / "token", authority.file
        self.token.write_text("geheim\n")
        mine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(mine.answers.get(self.path))

            def do_DELETE(self) -> None:
                mine.deleted.put(self.path.rpartition("/")[2])
                self.answer(mine.answers.get(self.path, {"kind": "Pod"}))

            def answer(self, body: Any) -> None:
                known = self.headers["Authorization"] == "Bearer geheim"
                self.send_response(200 if known and body is not None else 404 if known else 403)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(signed.certificate, signed.key)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.master": f"k8s://https://127.0.0.1:{self._server.server_port}",
            "spark.kubernetes.namespace": "queue",
            DRIVER: MINE,
            TOKEN_FILE: str(self.token),
            CA_FILE: str(self.ca),
        }

    def all_deleted(self) -> list[str]:
        return [self.deleted.get_nowait() for _ in range(self.deleted.qsize())]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path / "account")
    yield server
    server.close()


def test_executors_of_this_pod_are_removed_and_nobody_elses(api: ApiServer) -> None:
    mine, other = f"uid-of-{MINE}", "uid-of-arrivals-0"
    found = [pod("a-exec-1", mine), pod("b-exec-1", other), pod("a-exec-2", other, mine), pod("by-hand")]
    api.answers[EXECUTORS] = {"kind": "PartialObjectMetadataList", "items": found}
    assert remove(api.settings) == 2
    assert api.all_deleted() == ["a-exec-1", "a-exec-2"]


def test_one_that_went_meanwhile_is_no_failure(api: ApiServer) -> None:
    api.answers[EXECUTORS] = {"items": [pod(f"exec-{n}", f"uid-of-{MINE}") for n in range(2)]}
    api.answers[f"{PODS}/exec-0"] = None
    assert remove(api.settings) == 2
    assert api.all_deleted() == ["exec-0", "exec-1"]


@pytest.mark.parametrize("left_out", [DRIVER, "spark.master", TOKEN_FILE], ids=["pod", "master", "token"])
def test_a_driver_that_is_in_no_pod_asks_nobody(api: ApiServer, left_out: str) -> None:
    api.answers.clear()
    assert remove({name: value for name, value in api.settings.items() if name != left_out}) == 0


def test_a_second_pod_takes_no_executors_of_the_first(api: ApiServer) -> None:
    api.answers |= {f"{PODS}/flights-0": pod("flights-0"), EXECUTORS: {"items": [pod("exec-1", "uid-of-flights-0")]}}
    assert remove({**api.settings, DRIVER: "flights-0"}) == 0
    assert api.all_deleted() == []


@pytest.mark.parametrize("answer", [None, [], {"items": [{"metadata": {}}]}, {"items": 1}, "x"])
def test_an_answer_that_is_none_is_told_with_the_servers_address(api: ApiServer, answer: object) -> None:
    api.answers[EXECUTORS] = answer
    with pytest.raises(Unreachable, match=r"k8s://https://127.0.0.1:\d+: "):
        remove(api.settings)
    assert api.all_deleted() == []


def test_the_token_is_shown_to_no_server_of_another_authority(api: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        remove({**api.settings, CA_FILE: str(Authority(tmp_path / "other").file)})


def test_a_driver_removes_them_before_spark_starts(api: ApiServer, tmp_path: Path) -> None:
    api.answers[EXECUTORS] = {"items": [pod("exec-1", f"uid-of-{MINE}")]}
    path = tmp_path / "job.yaml"
    path.write_text(example("archive"))
    sets = [part for name, value in api.settings.items() for part in ("--set", f"spark.{name}={value}")]
    command = [sys.executable, "-m", "penstock_spark.cli", "run", str(path), *sets]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as driver:
        assert driver.stderr is not None
        try:
            assert api.deleted.get(timeout=LIMIT_S) == "exec-1"
            assert driver.stderr.readline() == "removed executors of an earlier driver: 1\n"
        finally:
            driver.kill()
