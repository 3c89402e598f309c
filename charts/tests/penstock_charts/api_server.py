"""Helm with an API server double that returns the objects of a test, for templates with `lookup`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from penstock_charts import RENDER


class Answers(BaseHTTPRequestHandler):
    found: Mapping[str, Any]

    def do_GET(self) -> None:
        body = self.found.get(self.path.partition("?")[0])
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body or {"kind": "Status", "status": "Failure", "code": 404}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def api_server(objects: Mapping[str, Any]) -> Iterator[str]:
    """Serve `objects`, by path, with the lists of each group's kinds. Yield the server's URL."""

    class Mine(Answers):
        found = objects

    server = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def refused_beside(url: str, helm: str, chart: Path, home: Path, *options: str) -> str:
    """Render with the objects of that API server. Return helm's error, or ""."""
    command = [helm, "template", "penstock", str(chart), *RENDER, "--kube-apiserver", url, "--dry-run=server", *options]
    env = {**os.environ, "KUBECONFIG": "/dev/null", "HOME": str(home)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (result.returncode != 0) == bool(result.stderr.strip()), result.stderr
    return result.stderr
