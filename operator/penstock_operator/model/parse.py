"""Conversion between API objects and models. The controllers parse each object before they reconcile it.

The CRD schema rejects most invalid objects. Objects stored under another schema version are rejected here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

import msgspec

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock_operator.model.access import OPERATIONS, UserAcl
from penstock_operator.model.cluster import Cluster, ClusterSpec, ClusterStatus
from penstock_operator.model.common import API_VERSION, TOPIC_NAME, Kind, Model, ObjectMeta, is_initial
from penstock_operator.model.etcd import Etcd
from penstock_operator.model.fields import description
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupSpec, ConsumerGroupStatus, OffsetReset
from penstock_operator.model.listeners import LISTENER_HOST, LISTENER_NAME, RESERVED_NAMES
from penstock_operator.model.replay import DeadLetterReplay, parse_timestamp_ms
from penstock_operator.model.settings import InexactNumber, normalised
from penstock_operator.model.topic import Topic, TopicSpec, TopicStatus
from penstock_operator.model.user import PLAIN_TEXT, USER_NAME, User, UserSpec, UserStatus

Resource = Cluster | Topic | ConsumerGroup | User
T = TypeVar("T")
S = TypeVar("S", bound=Model)


class InvalidResource(ValueError):
    """An object that does not match its kind. `field` is a path as in `kubectl explain`."""

    def __init__(self, kind: Kind, namespace: str, name: str, field: str, reason: str) -> None:
        super().__init__(f"{kind} {namespace}/{name}: {field}: {reason}")
        self.kind, self.namespace, self.name, self.field, self.reason = kind, namespace, name, field, reason


@overload
def parse(kind: Literal["Cluster"], object_: Mapping[str, Any]) -> Cluster: ...
@overload
def parse(kind: Literal["Topic"], object_: Mapping[str, Any]) -> Topic: ...
@overload
def parse(kind: Literal["ConsumerGroup"], object_: Mapping[str, Any]) -> ConsumerGroup: ...
@overload
def parse(kind: Literal["User"], object_: Mapping[str, Any]) -> User: ...
@overload
def parse(kind: Kind, object_: Mapping[str, Any]) -> Resource: ...


def parse(kind: Kind, object_: Mapping[str, Any]) -> Resource:
    """Parse an API object. Ignores unknown fields, the API server's initial status, and an invalid status, which the
    controller rewrites. Raises `InvalidResource`."""
    metadata = object_.get("metadata")
    shown = metadata if isinstance(metadata, Mapping) else {}
    context = _ObjectContext(kind, str(shown.get("namespace", "")), str(shown.get("name", "")))
    meta = context.convert(metadata, ObjectMeta, "metadata")
    spec = _with_string_config(context, object_.get("spec"))
    status = object_.get("status") or {}
    match kind:
        case "Cluster":
            cluster = context.convert(spec, ClusterSpec, "spec")
            _check_etcd(context, cluster.etcd)
            _check_listeners(context, cluster)
            return Cluster(metadata=meta, spec=cluster, status=_status(status, ClusterStatus))
        case "Topic":
            topic = Topic(
                metadata=meta, spec=context.convert(spec, TopicSpec, "spec"), status=_status(status, TopicStatus)
            )
            _check_topic_name(context, "spec.topicName", topic.topic_name)
            if topic.topic_name in INTERNAL_TOPICS:
                raise context.invalid(
                    "spec.topicName", f'"{topic.topic_name}" is an internal topic: choose another name'
                )
            return topic
        case "ConsumerGroup":
            group = context.convert(spec, ConsumerGroupSpec, "spec")
            if group.reset is not None:
                _check_reset(context, group.reset)
            if group.replay_dead_letters is not None:
                _check_replay(context, group.replay_dead_letters)
            return ConsumerGroup(metadata=meta, spec=group, status=_status(status, ConsumerGroupStatus))
        case "User":
            user = User(metadata=meta, spec=context.convert(spec, UserSpec, "spec"), status=_status(status, UserStatus))
            _check_user(context, user)
            return user


def status_of(kind: Kind, object_: Mapping[str, Any]) -> ClusterStatus | TopicStatus | ConsumerGroupStatus | UserStatus:
    """Return the status of an object whose spec may be invalid; an empty status if it cannot be parsed."""
    status = object_.get("status") or {}
    match kind:
        case "Cluster":
            return _status(status, ClusterStatus)
        case "Topic":
            return _status(status, TopicStatus)
        case "ConsumerGroup":
            return _status(status, ConsumerGroupStatus)
        case "User":
            return _status(status, UserStatus)


def as_object(resource: Resource) -> dict[str, Any]:
    """Return the manifest for `apply` and `create`: without status and server-set metadata."""
    meta = resource.metadata
    metadata: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace}
    metadata |= {k: dict(v) for k, v in (("labels", meta.labels), ("annotations", meta.annotations)) if v}
    return {
        "apiVersion": API_VERSION,
        "kind": type(resource).__name__,
        "metadata": metadata,
        "spec": as_json(resource.spec),
    }


def as_json(part: Model) -> dict[str, Any]:
    """Return a spec or a status as JSON types, without default values."""
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(part))  # lists instead of tuples, for comparison
    return decoded


class _ObjectContext(msgspec.Struct, frozen=True):
    kind: Kind
    namespace: str
    name: str

    def convert(self, value: Any, type_: type[T], path: str) -> T:
        try:
            return msgspec.convert(value, type_)
        except msgspec.ValidationError as e:
            reason, _, inside = str(e).partition(" - at `$")
            expected = description(type_, inside.rstrip("`"))
            raise self.invalid(path + inside.rstrip("`"), f"{reason}; {expected}" if expected else reason) from None

    def invalid(self, field: str, reason: str) -> InvalidResource:
        return InvalidResource(self.kind, self.namespace, self.name, field, reason)


def _with_string_config(context: _ObjectContext, spec: Any) -> Any:
    """Return `spec` with the settings in `config` as strings. Raises `InvalidResource`."""
    if isinstance(spec, Mapping) and isinstance(spec.get("config"), Mapping):
        try:
            return {**spec, "config": normalised(spec["config"])}
        except InexactNumber as e:
            raise context.invalid(f"spec.config[{e.setting}]", str(e)) from None
    return spec


def _status(value: Any, type_: type[S]) -> S:
    try:
        return msgspec.convert({} if is_initial(value) else value, type_)
    except msgspec.ValidationError:
        return type_()


def _check_etcd(context: _ObjectContext, etcd: Etcd) -> None:
    if bool(etcd.endpoints) == (etcd.sidecar is not None):
        raise context.invalid("spec.etcd", "set exactly one of endpoints and sidecar")


def _check_listeners(context: _ObjectContext, spec: ClusterSpec) -> None:
    """Check what is written into the start script and into setting names of brokers."""
    for number, listener in enumerate(spec.listeners):
        where = f"spec.listeners[{number}]"
        if re.fullmatch(LISTENER_NAME, listener.name) is None or listener.name in RESERVED_NAMES:
            raise context.invalid(f"{where}.name", f'"{listener.name[:100]}" is not a listener name: use a-z and 0-9')
        if listener.host is not None and re.fullmatch(LISTENER_HOST, listener.host) is None:
            raise context.invalid(f"{where}.host", f'"{listener.host[:100]}" is not a host name or IP address')
        if (listener.authentication == "oauth") != (listener.oauth is not None):
            raise context.invalid(f"{where}.oauth", "it requires authentication oauth, and the reverse")
        if listener.oauth is not None and re.fullmatch("https://[^,]+", listener.oauth.jwks_url) is None:
            raise context.invalid(f"{where}.oauth.jwksUrl", "it must be an https:// URL, without commas")
        if listener.authentication in ("tls", "oauth") and not listener.tls:
            raise context.invalid(f"{where}.tls", f"authentication {listener.authentication} requires tls: true")
    names, ports = [each.name for each in spec.listeners], [each.port for each in spec.listeners]
    if len(set(names)) < len(names) or len(set(ports)) < len(ports):
        raise context.invalid("spec.listeners", "two listeners have the same name or port; use different ones")
    if spec.listeners and spec.external is not None:
        raise context.invalid("spec.external", "it cannot be combined with listeners; add an external listener there")


def _check_topic_name(context: _ObjectContext, field: str, name: str) -> None:
    if re.fullmatch(TOPIC_NAME.rstrip("$"), name) is None or name in (".", ".."):
        raise context.invalid(field, f"\"{name[:100]}\" is not a topic name: use letters, digits, '.', '_' and '-'")


def _check_user(context: _ObjectContext, user: User) -> None:
    name = user.user_name
    if re.fullmatch(USER_NAME.strip("^$"), name) is None or name == "*":
        raise context.invalid("spec.userName", "use a name without control characters and outer spaces, and not *")
    if user.mechanism is not None and re.fullmatch(PLAIN_TEXT, name) is None:
        raise context.invalid("spec.userName", "a user with a password has a name of printable ASCII without backslash")
    if user.spec.principal_type == "Group" and (user.mechanism is not None or user.spec.quotas is not None):
        raise context.invalid(
            "spec.principalType", "Group requires authentication.type oauth or external, and no quotas"
        )
    for index, acl in enumerate(user.spec.acls):
        _check_acl(context, f"spec.acls[{index}]", acl)


def _check_acl(context: _ObjectContext, path: str, acl: UserAcl) -> None:
    resources = {
        "topic": acl.topic, "group": acl.group, "transactionalId": acl.transactional_id, "cluster": acl.cluster or None,
    }  # fmt: skip
    given = [field for field, value in resources.items() if value is not None]
    if len(given) != 1:
        raise context.invalid(path, f"set exactly one of {', '.join(resources)}")
    foreign = [operation for operation in acl.operations if operation not in OPERATIONS[given[0]]]
    if foreign:
        raise context.invalid(
            f"{path}.operations", f'"{foreign[0]}" is not an operation of {given[0]}: {", ".join(OPERATIONS[given[0]])}'
        )
    if acl.prefix and given == ["cluster"]:
        raise context.invalid(f"{path}.prefix", "prefix does not apply to cluster: remove one of them")


def _check_reset(context: _ObjectContext, reset: OffsetReset) -> None:
    for target, value in (("timestamp", reset.timestamp), ("offset", reset.offset)):
        if (reset.to == target) != (value is not None):
            raise context.invalid(
                f"spec.reset.{target}", f"it requires `to: {target}`, and the reverse: set both or neither"
            )
    try:
        _ = reset.timestamp_ms
    except (ValueError, OverflowError) as e:
        raise context.invalid("spec.reset.timestamp", f"{e}; write it as 2026-11-21T08:00:00Z") from None
    if reset.partitions and len(reset.topics) != 1:
        raise context.invalid("spec.reset.partitions", "requires exactly one topic in topics")


def _check_replay(context: _ObjectContext, replay: DeadLetterReplay) -> None:
    for field, name in (("topic", replay.topic), ("to", replay.to)):
        if name is not None:
            _check_topic_name(context, f"spec.replayDeadLetters.{field}", name)
    for field, text in (("since", replay.since), ("until", replay.until)):
        try:
            _ = None if text is None else parse_timestamp_ms(text)
        except (ValueError, OverflowError) as e:
            raise context.invalid(f"spec.replayDeadLetters.{field}", f"{e}; write it as 2026-11-21T08:00:00Z") from None
    since_ms, until_ms = replay.since_ms, replay.until_ms
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise context.invalid("spec.replayDeadLetters.since", "it must be before until: no letter would be selected")
