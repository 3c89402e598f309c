"""Runs in an init container of each broker pod with a sidecar etcd: writes what the etcd container starts with.

It is put into the cluster's ConfigMap as it stands and run by the broker image's Python, so it uses the standard
library alone. Members of etcd are on the first ordinals; the other pods have a gateway to them. etcd's released image
holds nothing but etcd, so the shell that tells the two apart, and what the shell needs, come from the broker image.

A member that comes without its data after the cluster was founded must not pretend to be what it was: its membership
ends and a new one begins, which etcd fills. The others are told so by etcd's own JSON interface; where none answers,
this fails, and is tried again.
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
    """What the etcd container runs. `hosts` and `names` are the members', in the order of their ordinals."""
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
    """How a member without data begins in a cluster that has been founded: "existing", to be filled by the others, or
    "new" where it never ran. Ends the membership of the one whose data are lost. Raises OSError where nobody agrees."""
    peer = f"http://{host}:{PEER_PORT}"
    problems = []
    for other in others:
        url = f"http://{other}:{PORT}/v3/cluster/member"
        try:
            members = call(f"{url}/list", {"linearizable": True}).get("members", ())
        except OSError as e:
            problems.append(f"{other}: {e}")
            continue
        mine = next((member for member in members if peer in member.get("peerURLs", ())), None)
        if mine is not None and mine.get("name") and not mine.get("clientURLs"):
            return "new"
        if mine is not None and mine.get("name"):
            sys.stderr.write(f"{name} was a member and has no data: it becomes one anew\n")
            call(f"{url}/remove", {"ID": mine["ID"]})
        if mine is None or mine.get("name"):
            call(f"{url}/add", {"peerURLs": [peer]})
        return "existing"
    raise OSError(f"{name} has no data, and no other member of etcd answers: {'; '.join(problems)}")


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        found = json.load(answer)
    if not isinstance(found, dict):
        raise OSError(f"{url} did not answer with an object")
    return found


def bring_shell(into: Path) -> None:
    """The shell, the libraries that it has open, and their loader: enough to run in an image that has none."""
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
        raise OSError("the broker image's shell has no dynamic loader: use the released broker image")


def main() -> None:
    ordinal = int(os.environ["POD_NAME"].rpartition("-")[2])
    hosts, names = os.environ["ETCD_HOSTS"].split(","), os.environ["ETCD_NAMES"].split(",")
    data_dir, run_dir = os.environ["ETCD_DATA_DIR"], Path(os.environ["ETCD_RUN_DIR"])
    # Its log is what makes a member: the directory around it comes first, and may have been left without one.
    has_data = os.path.isdir(os.path.join(data_dir, "member", "wal"))
    state = "new"
    if ordinal < len(hosts) and not has_data and os.path.exists(os.environ["ETCD_FOUNDED"]):
        state = join_again(hosts[ordinal], names[ordinal], [h for h in hosts if h != hosts[ordinal]], ask)
    bring_shell(run_dir)
    (run_dir / "start").write_text(start_script(ordinal, hosts, names, state, data_dir))


if __name__ == "__main__":
    main()
