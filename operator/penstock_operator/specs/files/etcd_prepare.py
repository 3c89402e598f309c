"""Init container script of broker pods with a sidecar etcd: writes the start script of the etcd container.

The cluster's ConfigMap contains this file, and the broker image's Python runs it, so it uses only the standard library.
etcd members run on the first ordinals, the other pods run a gateway. The released etcd image has no shell, so the shell
and its libraries are copied from the broker image.

A member that has lost its data after the cluster was formed must not rejoin under its old membership: the script
removes the old member and adds a new one through etcd's JSON API, and etcd replicates the data. If no other member
answers, the script fails and Kubernetes retries it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Call = Callable[[str, "dict[str, Any]"], "dict[str, Any]"]
PORT, PEER_PORT = 2379, 2380
TIMEOUT_S = 10.0


def start_script(ordinal: int, hosts: Sequence[str], names: Sequence[str], state: str, data_dir: str) -> str:
    """Return the start script of the etcd container. `hosts` and `names` of the members are in ordinal order."""
    if ordinal >= len(hosts):
        endpoints = ",".join(f"{host}:{PORT}" for host in hosts)
        return f"exec etcd gateway start --listen-addr=0.0.0.0:{PORT} --endpoints={endpoints}\n"
    host = hosts[ordinal]
    members = ",".join(f"{name}=http://{at}:{PEER_PORT}" for name, at in zip(names, hosts, strict=True))
    flags = {
        "name": names[ordinal],
        "data-dir": data_dir,
        "listen-client-urls": f"http://0.0.0.0:{PORT}",
        "advertise-client-urls": f"http://{host}:{PORT}",
        "listen-peer-urls": f"http://0.0.0.0:{PEER_PORT}",
        "initial-advertise-peer-urls": f"http://{host}:{PEER_PORT}",
        "initial-cluster": members,
        "initial-cluster-state": state,
        "initial-cluster-token": names[0],
        "quota-backend-bytes": str(2 << 30),
        "logger": "zap",
        "log-level": "warn",
    }
    return "exec etcd" + "".join(f" --{name}={value}" for name, value in flags.items()) + "\n"


def join_again(host: str, name: str, others: Sequence[str], call: Call) -> str:
    """Return the initial cluster state of a member without data: "existing", or "new" if it never ran. Replaces the
    membership of a member that lost its data. Raises OSError if no other member answers."""
    peer = f"http://{host}:{PEER_PORT}"
    problems = []
    for other in others:
        url = f"http://{other}:{PORT}/v3/cluster/member"
        try:
            members = call(f"{url}/list", {"linearizable": True}).get("members", ())
        except OSError as e:
            problems.append(f"{other}: {e}")
            continue
        member = next((m for m in members if peer in m.get("peerURLs", ())), None)
        if member is not None and member.get("name") and not member.get("clientURLs"):
            return "new"
        if member is not None and member.get("name"):
            sys.stderr.write(f"etcd member {name} has lost its data: replacing its membership\n")
            call(f"{url}/remove", {"ID": member["ID"]})
        if member is None or member.get("name"):
            call(f"{url}/add", {"peerURLs": [peer]})
        return "existing"
    raise OSError(f"etcd member {name} has no data, and no other member answers: {'; '.join(problems)}")


def post_json(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request to etcd's JSON API. Raises OSError."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        found = json.load(answer)
    if not isinstance(found, dict):
        raise OSError(f"{url}: expected a JSON object")
    return found


def copy_shell(into: Path) -> None:
    """Copy the shell, its loaded libraries and the dynamic loader, so that it runs in an image without a shell."""
    maps = subprocess.run(["/bin/sh", "-c", "read -r x < /proc/self/maps; while read -r line; do echo \"$line\"; done"
                           " < /proc/$$/maps"], check=True, capture_output=True, text=True).stdout  # fmt: skip
    paths = {line.split()[-1] for line in maps.splitlines() if line.split()[-1].startswith("/")}
    shell = os.path.realpath("/bin/sh")
    for path in paths | {shell}:
        if path == shell:
            name = "sh"
        elif os.path.basename(path).startswith("ld-") or os.path.basename(path).startswith("ld.so"):
            name = "ld.so"
        else:
            name = os.path.basename(path)
        if path == shell or ".so" in os.path.basename(path):
            shutil.copy2(path, into / name)
    if not (into / "ld.so").exists():
        raise OSError("the shell of the broker image has no dynamic loader: use the released broker image")


def main() -> None:
    """Write the start script and copy the shell into the run directory."""
    ordinal = int(os.environ["POD_NAME"].rpartition("-")[2])
    hosts, names = os.environ["ETCD_HOSTS"].split(","), os.environ["ETCD_NAMES"].split(",")
    data_dir, run_dir = os.environ["ETCD_DATA_DIR"], Path(os.environ["ETCD_RUN_DIR"])
    # A member has data once its WAL exists; the directory is created earlier.
    has_data = os.path.isdir(os.path.join(data_dir, "member", "wal"))
    state = "new"
    if ordinal < len(hosts) and not has_data and os.path.exists(os.environ["ETCD_FOUNDED"]):
        state = join_again(hosts[ordinal], names[ordinal], [h for h in hosts if h != hosts[ordinal]], post_json)
    copy_shell(run_dir)
    (run_dir / "start").write_text(start_script(ordinal, hosts, names, state, data_dir))


if __name__ == "__main__":
    main()
