"""Renders the pod template of the StatefulSet. Per-broker values are derived from the pod name at startup."""

from __future__ import annotations

from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.listeners import BROKERS_PORT, ORDINAL
from penstock_operator.ports.kube import Object
from penstock_operator.specs import compare, etcd, names, security, settings
from penstock_operator.specs.listeners import (
    BrokerListener,
    Transition,
    advertises_pod,
    inter_broker_name,
    is_secured,
    listeners_of,
    service_listeners,
)

USER = 10001
SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
TLS_START = f"""\
tls={names.ETCD_TLS_DIR}
if [ -s $tls/tls.crt ]; then set -- "$@" --etcd-cert $tls/tls.crt --etcd-key $tls/tls.key; fi
"""
"""Adds the client certificate flags if the Secret has a certificate."""
EXTERNAL_START = f"""\
file={names.CONFIG_DIR}/external-${{POD_NAME##*-}}
if [ -s "$file" ]; then
  read -r address < "$file"
  case $HOST_IP in *:*) HOST_IP="[$HOST_IP]" ;; esac
  case $address in :*) address=$HOST_IP$address ;; esac
  set -- "$@" --listener "$EXTERNAL_LISTENER" --advertise "$EXTERNAL_NAME://$address"
fi
"""
"""Adds the external listener if the broker's address is known; an address without host uses the node's IP address."""
ADDRESS_START = """\
case $HOST_IP in *:*) HOST_IP="[$HOST_IP]" ;; esac
"""
ADVERTISE_START = f"""\
file={names.CONFIG_DIR}/external-{{port_name}}-${{{{POD_NAME##*-}}}}
address={{host}}:{{port}}
if [ -s "$file" ]; then read -r address < "$file"; fi
case $address in :*) address=$HOST_IP$address ;; esac
set -- "$@" --advertise "{{name}}://$address"
"""
"""Advertises the external address of a listener. While it is unknown, no client outside knows the broker, and the pod's
address is advertised."""


def template(cluster: Cluster, image: str, members: int, transition: Transition = Transition.NONE) -> Object:
    """Render the pod template. An annotation has the hash of template and settings; pods with another hash restart."""
    brokers = cluster.spec.brokers
    labels = {**brokers.pod_labels, **names.labels(cluster.metadata.name)}
    made: Object = {
        "metadata": {"labels": labels, "annotations": {**brokers.pod_annotations}},
        "spec": pod_spec(cluster, image, members, transition),
    }
    if security.has_certificates(cluster, transition):
        made["metadata"]["annotations"] |= {
            names.LISTENERS: ",".join(listener.name for listener in listeners_of(cluster, transition)),
            names.INTER_BROKER: inter_broker_name(cluster, transition),
        }
    restart_token = cluster.metadata.annotations.get(names.RESTART, "")
    started_with = [made, settings.start_settings(cluster, transition), restart_token]
    made["metadata"]["annotations"][names.RESTART] = compare.digest(started_with)
    return made


def pod_spec(cluster: Cluster, image: str, members: int, transition: Transition) -> Object:
    """Render the pod spec."""
    brokers, sidecar = cluster.spec.brokers, cluster.spec.etcd.sidecar
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": brokers.termination_grace_period_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [broker(cluster, image, members, transition)],
        "volumes": [
            {"name": "config", "configMap": {"name": names.config_map(cluster.metadata.name)}},
            {"name": "tmp", "emptyDir": {}},
            *etcd.volumes(cluster),
            *security.volumes(cluster, transition),
        ],
        "topologySpreadConstraints": list(
            brokers.topology_spread_constraints if brokers.topology_spread_constraints is not None else spread(cluster)
        ),
    }
    if sidecar is not None:
        spec["initContainers"] = etcd.init_containers(cluster, sidecar, members, image, SECURITY)
    chosen: dict[str, Any] = {
        "nodeSelector": brokers.node_selector,
        "tolerations": list(brokers.tolerations),
        "affinity": brokers.affinity if brokers.affinity is not None else spread_by_node(cluster),
        "priorityClassName": brokers.priority_class_name,
        "serviceAccountName": brokers.service_account_name,
        "imagePullSecrets": list(brokers.image_pull_secrets),
    }
    return spec | {name: value for name, value in chosen.items() if value}


def broker(cluster: Cluster, image: str, members: int, transition: Transition) -> Object:
    """Render the broker container."""
    container: Object = {
        "name": "broker",
        "image": image,
        "command": ["penstock", *arguments(cluster, members, transition)],
        "env": environment(cluster),
        "ports": ports(cluster, transition),
        # A broker that recovers logs is live before it is ready.
        "startupProbe": http_probe("/health/live", 1, 120),
        "livenessProbe": http_probe("/health/live", 10, 3),
        "readinessProbe": http_probe("/health/ready", 2, 2),
        "resources": cluster.spec.brokers.resources,
        "securityContext": SECURITY,
        "volumeMounts": [
            {"name": names.DATA_CLAIM, "mountPath": names.DATA_DIR},
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *security.mounts(cluster, transition),
        ],
    }
    start = ""
    if cluster.spec.etcd.sidecar is None and cluster.spec.etcd.client_secret is not None:
        container["volumeMounts"].append({"name": "etcd-tls", "mountPath": names.ETCD_TLS_DIR, "readOnly": True})
        start += TLS_START
    if cluster.spec.external is not None:
        start += EXTERNAL_START
    elif external := service_listeners(cluster):
        start += ADDRESS_START + "".join(advertise_start(cluster, listener) for listener in external)
    if start:
        container["command"] = ["/bin/sh", "-c", f'{start}exec "$@"\n', "start", *container["command"]]
    return container


def advertise_start(cluster: Cluster, listener: BrokerListener) -> str:
    """Return the part of the start script that advertises an external listener."""
    host = names.pod_host(cluster, "$POD_NAME")
    return ADVERTISE_START.format(port_name=listener.port_name, host=host, port=listener.port, name=listener.name)


def arguments(cluster: Cluster, members: int, transition: Transition) -> list[str]:
    """Return the arguments of `penstock`."""
    return [
        "up",
        "--id",
        "$(POD_INDEX)",
        "--data",
        f"{names.DATA_DIR}/data",
        "--config",
        f"{names.CONFIG_DIR}/penstock.toml",
        "--http-host",
        "0.0.0.0",  # noqa: S104 - the pod's own network
        "--http-port",
        str(names.HTTP_PORT),
        *listener_flags(cluster, transition),
        *etcd.flags(cluster, members),
        "--log-format",
        "json",
    ]


def listener_flags(cluster: Cluster, transition: Transition) -> list[str]:
    """Return the flags of the listeners. The start script adds the addresses of external ones, and `spec.external`."""
    found: list[str] = []
    for listener in listeners_of(cluster, transition):
        if listener.service_type is not None and listener.spec is None:
            continue
        found += ["--listener", f"{listener.name}://0.0.0.0:{listener.port}"]
        if listener.route is not None and listener.host is not None:
            host = listener.host.replace(ORDINAL, "$(POD_INDEX)")
            found += ["--advertise", f"{listener.name}://{host}:{listener.route.port}"]
        elif listener.service_type is None:
            host_of = names.pod_host if advertises_pod(cluster, listener) else names.broker_host
            found += ["--advertise", f"{listener.name}://{host_of(cluster, '$(POD_NAME)')}:{listener.port}"]
    return found


def environment(cluster: Cluster) -> list[Object]:
    """Return the environment of the broker container."""
    found = [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_INDEX", f"metadata.labels['{names.INDEX_LABEL}']"),
    ]
    if is_secured(cluster):
        found += [
            {"name": "PENSTOCK_BOOTSTRAP", "value": f"{names.broker_host(cluster, '$(POD_NAME)')}:{BROKERS_PORT}"},
            {"name": "PENSTOCK_CONFIG", "value": f"{names.CONFIG_DIR}/{names.CLIENT_PROPERTIES}"},
        ]
    external = cluster.spec.external
    if external is None and service_listeners(cluster):
        found.append(from_field("HOST_IP", "status.hostIP"))
    if external is not None:
        name = external.name.upper().replace("-", "_")
        found += [
            from_field("HOST_IP", "status.hostIP"),
            {"name": "EXTERNAL_NAME", "value": name},
            {
                "name": "PENSTOCK_SET_LISTENER_SECURITY_PROTOCOL_MAP",
                "value": f"PLAINTEXT:PLAINTEXT,{name}:PLAINTEXT",
            },
            {"name": "EXTERNAL_LISTENER", "value": f"{name}://0.0.0.0:{external.port}"},
        ]
    return found


def from_field(name: str, path: str) -> Object:
    """Return an environment variable with the value of a pod field."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def ports(cluster: Cluster, transition: Transition) -> list[Object]:
    """Return the ports of the broker container."""
    kafka = [
        {"name": listener.port_name, "containerPort": listener.port, "protocol": "TCP"}
        for listener in listeners_of(cluster, transition)
    ]
    return [kafka[0], {"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"}, *kafka[1:]]


def http_probe(path: str, period_s: int, failures: int) -> Object:
    """Return an HTTP probe."""
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def spread(cluster: Cluster) -> list[Object]:
    """Return the default spread over zones and nodes, best effort."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector(cluster.metadata.name)},
        }
        for key in (cluster.spec.zone_label, "kubernetes.io/hostname")
    ]


def spread_by_node(cluster: Cluster) -> Object:
    """Return the default affinity: prefer nodes without another broker of the cluster."""
    term = {
        "labelSelector": {"matchLabels": names.selector(cluster.metadata.name)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
