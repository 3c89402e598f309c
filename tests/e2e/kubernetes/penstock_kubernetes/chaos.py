"""Harmful steps for a cluster of three brokers and three members of etcd, each of which ends by itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock_kubernetes.kubectl import CommandFailed, eventually, run
from penstock_kubernetes.release import NAME, Release

BROKERS, MEMBERS, NODES = 3, 3, 3
CGROUPS = Path(os.environ.get("LOCAL_CLUSTER_CGROUP", "/sys/fs/cgroup/pids/penstock-k8s"))
"""Cgroup of the local cluster: `MACHINE/system/cgroup.procs` lists the programs of a machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of harm. `loses_data`: a copy is lost, so that the step waits until all copies are complete.
    `hides_pods`: the API server does not know meanwhile which pods are ready."""

    name: str
    act: Callable[[Release, random.Random], str]
    loses_data: bool = False
    hides_pods: bool = False


def hold(chance: random.Random, least_s: float, most_s: float) -> float:
    """Let the harm last; return how long. It is the duration of the harm, and no wait for a condition."""
    lasting_s = chance.uniform(least_s, most_s)
    time.sleep(lasting_s)
    return lasting_s


def broker(chance: random.Random) -> str:
    return f"{NAME}-broker-{chance.randrange(BROKERS)}"


def member(chance: random.Random) -> str:
    return f"{NAME}-etcd-{chance.randrange(MEMBERS)}"


def delete(release: Release, pod: str, *, force: bool) -> None:
    options = ("--grace-period=0", "--force") if force else ("--wait=false",)
    release.kubectl("delete", "pod", pod, "--ignore-not-found", *options)


def delete_broker(release: Release, chance: random.Random) -> str:
    pod, force = broker(chance), chance.random() < 0.5
    delete(release, pod, force=force)
    return f"{pod}, {'killed' if force else 'stopped'}"


def kill_member(release: Release, chance: random.Random) -> str:
    pod = member(chance)
    delete(release, pod, force=True)
    return pod


def kill_operator(release: Release, _: random.Random) -> str:
    pod = eventually("an operator leads", release.leader, 60)
    delete(release, pod, force=True)
    return pod


def delete_claim(release: Release, pod: str) -> str:
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in (release.kubectl.get("pod", pod) or {})["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    release.kubectl("delete", "pvc", *claims, "--wait=false")
    delete(release, pod, force=True)
    return f"{claims} of {pod}"


def delete_claim_of_broker(release: Release, chance: random.Random) -> str:
    return delete_claim(release, broker(chance))


def delete_claim_of_member(release: Release, chance: random.Random) -> str:
    return delete_claim(release, member(chance))


def fill_quota(release: Release, chance: random.Random) -> str:
    """Delete a pod, and permit none in its place."""
    pod = chance.choice((broker, member))(chance)
    running = [each for each in release.kubectl.list("pods") if each["status"]["phase"] in ("Pending", "Running")]
    name = "chaos"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}}
    release.kubectl.apply({**quota, "spec": {"hard": {"pods": str(len(running) - 1)}}})
    try:
        in_effect = lambda: (release.kubectl.status("resourcequota", name).get("used") or {}).get("pods")  # noqa: E731
        eventually("the quota is in effect", in_effect, 60)
        delete(release, pod, force=True)
        lasted_s = hold(chance, 10, 25)
    finally:
        release.kubectl("delete", "resourcequota", name)
    return f"no pod in place of {pod} for {lasted_s:.0f} s"


def isolate(release: Release, chance: random.Random) -> str:
    """Forbid a pod to connect to others. A policy counts for new connections, so the pod starts anew."""
    pod = chance.choice((broker, member))(chance)
    selector = {"matchLabels": {"statefulset.kubernetes.io/pod-name": pod}}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "chaos"}}
    release.kubectl.apply({**policy, "spec": {"podSelector": selector, "policyTypes": ["Egress"]}})
    try:
        delete(release, pod, force=True)
        lasted_s = hold(chance, 10, 25)
    finally:
        release.kubectl("delete", "networkpolicy", "chaos")
    return f"{pod} for {lasted_s:.0f} s"


def node(what: str, number: int) -> None:
    subprocess.run([os.environ["LOCAL_CLUSTER"] + "/node", what, str(number)], check=True, timeout=120)


def kill_node(_: Release, chance: random.Random) -> str:
    number = 1 + chance.randrange(NODES)
    node("kill", number)
    try:
        lasted_s = hold(chance, 5, 60)
    finally:
        node("start", number)
    return f"node {number} for {lasted_s:.0f} s"


def cut_node(_: Release, chance: random.Random) -> str:
    number = 1 + chance.randrange(NODES)
    node("cut", number)
    try:
        lasted_s = hold(chance, 5, 60)
    finally:
        node("mend", number)
    return f"node {number} for {lasted_s:.0f} s"


@contextmanager
def stopped(machine: str, program: str) -> Iterator[None]:
    """Stop a program of a machine of the local cluster by SIGSTOP during the block."""
    listed = (CGROUPS / machine / "system" / "cgroup.procs").read_text(encoding="ascii").split()
    named = lambda pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()  # noqa: E731
    (pid,) = [int(pid) for pid in listed if Path(named(pid)).name == program]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def stop_kubelet(release: Release, chance: random.Random) -> str:
    """Stop a kubelet, and delete its brokers: their pods are ending until the kubelet continues."""
    name = f"node-{1 + chance.randrange(NODES)}"
    with stopped(name, "kubelet"):
        pods = [pod for pod, body in release.brokers().items() if body["spec"].get("nodeName") == name]
        for pod in pods:
            delete(release, pod, force=False)
        lasted_s = hold(chance, 10, 60)
    return f"of {name} for {lasted_s:.0f} s, and {pods} deleted"


def stop_api_server(release: Release, chance: random.Random) -> str:
    with stopped("control", "kube-apiserver"):
        lasted_s = hold(chance, 5, 25)
    eventually("the API server answers", lambda: answers(release), 60)
    return f"for {lasted_s:.0f} s"


def answers(release: Release) -> bool:
    try:
        return bool(run("kubectl", "--namespace", release.namespace, "get", "pods", "--request-timeout=5s"))
    except CommandFailed:
        return False


STEPS = (
    Step("broker deleted", delete_broker),
    Step("member of etcd killed", kill_member),
    Step("operator killed", kill_operator),
    Step("claim of a broker deleted", delete_claim_of_broker, loses_data=True),
    Step("claim of a member of etcd deleted", delete_claim_of_member, loses_data=True),
    Step("quota full", fill_quota),
    Step("isolated by a NetworkPolicy", isolate),
    Step("node killed", kill_node, hides_pods=True),
    Step("node cut off", cut_node, hides_pods=True),
    Step("kubelet stopped", stop_kubelet, hides_pods=True),
    Step("API server stopped", stop_api_server, hides_pods=True),
)
