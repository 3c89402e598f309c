"""The part of the admin client that concerns settings: of topics, brokers and groups, one or thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.client.admin.topics import TopicAdminClient
from penstock.client.admin.types import AlterConfig, BrokerVersion, ConfigEntry
from penstock.client.connection import VERSIONS_REQUEST
from penstock.client.errors import BrokerError, ClientError, UnknownTopic
from penstock.client.many import all_or_raise, ask_each, each, may_pass, never
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import describe_configs
from penstock.wire.messages import incremental_alter_configs as alter_configs
from penstock.wire.messages.api_versions import ApiVersionsResponse

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kinds of resources that have settings, as the protocol numbers them."""
SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "static", 5: "default", 8: "group"}
OWN = ("topic", "broker", "cluster", "group")
"""Sources of what is set at run time for the thing itself."""
OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
DESCRIBED_TOGETHER, DESCRIBED_WHOLLY = 500, 50
"""Resources of one request: where only what is set for each is told, and where all of their settings are."""
CHANGED_TOGETHER = 200
RELEASE, FEATURE = "penstock.release", "penstock.version"

Configs = dict[str, ConfigEntry]


class ConfigAdminClient(TopicAdminClient):
    """Settings; `admin.Admin` is what applications use."""

    async def topic_configs(self, topic: str) -> Configs:
        """All settings of a topic by Kafka's names."""
        return all_or_raise(await self._describe(TOPIC, [topic], documented=True))[topic]

    async def describe_topic_configs(
        self, topics: Iterable[str], names: Sequence[str] | None = None, *, only_own: bool = False
    ) -> dict[str, Configs | ClientError]:
        """The settings of many topics: all, or those of `names`, or (`only_own`) those that are set for the topic
        itself, which are much faster; `UnknownTopic` for those that are not there."""
        return await self._describe(TOPIC, topics, names, only_own=only_own)

    async def group_configs(self, groups: Iterable[str]) -> dict[str, Configs | ClientError]:
        """The settings of groups, which may be set before there is a group; at a broker other than Penstock's its own
        settings of groups, if it has any."""
        return await self._describe(GROUP, groups)

    async def broker_configs(self, broker_id: int, names: Sequence[str] | None = None) -> Configs:
        """Settings of a broker by Kafka's names: all, or those of `names` that it has. The broker itself is asked."""
        found = await self._describe(BROKER, [str(broker_id)], names, documented=names is None)
        return all_or_raise(found)[str(broker_id)]

    async def broker_configs_many(
        self, broker_ids: Iterable[int], *, only_own: bool = False
    ) -> dict[int, Configs | ClientError]:
        """The settings of brokers: all, or (`only_own`) those that are set at run time. Each is asked itself, and once:
        one that is away is not waited for."""

        async def one(broker_id: int) -> Configs:
            found = await self._describe(BROKER, [str(broker_id)], only_own=only_own, again=never)
            return all_or_raise(found)[str(broker_id)]

        return await each(one, broker_ids)

    async def broker_versions(self) -> dict[int, BrokerVersion | ClientError]:
        """What each broker runs that is there; each is asked once."""
        return await each(self._version_of, [node.node_id for node in (await self.describe_cluster()).brokers])

    async def _version_of(self, node_id: int) -> BrokerVersion:
        found = await self._describe(BROKER, [str(node_id)], [RELEASE], again=never)
        release = all_or_raise(found)[str(node_id)].get(RELEASE)
        answer = await self._cluster.call(node_id, VERSIONS_REQUEST, ApiVersionsResponse)
        levels = [f.max_version_level for f in answer.finalized_features if f.name == FEATURE]
        highest = [f.max_version for f in answer.supported_features if f.name == FEATURE]
        return BrokerVersion(release.value or "" if release is not None else "", sum(levels), sum(highest))

    async def _describe(
        self,
        kind: int,
        resources: Iterable[str],
        names: Sequence[str] | None = None,
        *,
        documented: bool = False,
        only_own: bool = False,
        again: Callable[[ClientError], bool] = may_pass,
    ) -> dict[str, Configs | ClientError]:
        async def ask(wanted: list[str]) -> dict[str, Configs | ClientError]:
            keys = None if names is None else list(names)
            request = describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=keys
                    )
                    for name in wanted
                ],
                include_documentation=documented,
                only_own=only_own,
            )
            if kind == BROKER:
                answer = await self._cluster.call(int(wanted[0]), request, describe_configs.DescribeConfigsResponse)
            else:
                answer = await self._cluster.call_any(request, describe_configs.DescribeConfigsResponse)
            found: dict[str, Configs | ClientError] = {}
            for r in answer.results:
                if r.error_code:
                    found[r.resource_name] = resource_error(kind, r.resource_name, r.error_code, r.error_message)
                else:
                    entries = {c.name: config_entry(c) for c in sorted(r.configs, key=lambda c: c.name)}
                    found[r.resource_name] = {n: e for n, e in entries.items() if not only_own or e.source in OWN}
            return found

        at_a_time = (
            1 if kind == BROKER else DESCRIBED_TOGETHER if only_own or names or kind == GROUP else DESCRIBED_WHOLLY
        )
        return await ask_each(self._cluster, resources, ask, at_a_time=at_a_time, again=again)

    async def alter_topic_configs(
        self, topic: str, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Changes settings of a topic, and leaves the others as they are (KIP-339)."""
        all_or_raise(await self._alter(TOPIC, {topic: changes}, validate_only))

    async def alter_topic_configs_many(
        self, changes: Mapping[str, Sequence[AlterConfig]], *, validate_only: bool = False
    ) -> dict[str, ClientError | None]:
        """As `alter_topic_configs` for each topic, with what became of it: None where it is done."""
        return await self._alter(TOPIC, changes, validate_only)

    async def alter_group_configs(
        self, changes: Mapping[str, Sequence[AlterConfig]], *, validate_only: bool = False
    ) -> dict[str, ClientError | None]:
        """Changes settings of groups, with what became of each: None where it is done."""
        return await self._alter(GROUP, changes, validate_only)

    async def alter_broker_configs(
        self, broker_id: int | None, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Changes settings of a broker, or the cluster-wide defaults (None)."""
        name = "" if broker_id is None else str(broker_id)
        all_or_raise(await self._alter(BROKER, {name: changes}, validate_only))

    async def _alter(
        self, kind: int, changes: Mapping[str, Sequence[AlterConfig]], validate_only: bool
    ) -> dict[str, ClientError | None]:
        async def ask(names: list[str]) -> dict[str, ClientError | None]:
            resources = [
                alter_configs.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        alter_configs.AlterableConfig(
                            name=c.name, config_operation=OPERATIONS[c.operation], value=c.value
                        )
                        for c in changes[name]
                    ],
                )
                for name in names
            ]
            request = alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
            if kind == BROKER and names[0]:
                answer = await self._cluster.call(int(names[0]), request, alter_configs.IncrementalAlterConfigsResponse)
            else:
                answer = await self._cluster.call_controller(request, alter_configs.IncrementalAlterConfigsResponse)
            return {
                r.resource_name: resource_error(kind, r.resource_name, r.error_code, r.error_message)
                if r.error_code
                else None
                for r in answer.responses
            }

        at_a_time = 1 if kind == BROKER else CHANGED_TOGETHER
        return await ask_each(self._cluster, changes, ask, at_a_time=at_a_time, again=may_pass)


def config_entry(c: describe_configs.DescribeConfigsResourceResult) -> ConfigEntry:
    source = SOURCES.get(c.config_source, "default")
    return ConfigEntry(c.name, c.value, source, c.read_only, c.is_sensitive, c.documentation or None)


def resource_error(kind: int, name: str, code: int, message: str | None) -> ClientError:
    if kind == TOPIC and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"topic {name!r} does not exist")
    about = f"topic {name!r}" if kind == TOPIC else f"group {name!r}" if kind == GROUP else f"broker {name}"
    return BrokerError(code, about if name else "the cluster", message)
