"""Admin calls about the configuration of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.client.admin.certificates import parse_certificates
from penstock.client.admin.topics import TopicAdminClient
from penstock.client.admin.types import AlterConfig, BrokerCertificate, BrokerVersion, ConfigEntry
from penstock.client.connection import VERSIONS_REQUEST
from penstock.client.errors import BrokerError, ClientError, UnknownTopic
from penstock.client.many import all_or_raise, gather_each, is_retriable, no_retry, request_each
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import describe_configs
from penstock.wire.messages import incremental_alter_configs as alter_configs
from penstock.wire.messages.api_versions import ApiVersionsResponse

TOPIC, BROKER, GROUP = 2, 4, 32
"""Resource types of the protocol."""
SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "static", 5: "default", 8: "group"}
OWN_SOURCES = ("topic", "broker", "cluster", "group")
"""Sources of settings that are set for the resource itself."""
OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
MAX_DESCRIBED_PARTLY, MAX_DESCRIBED_FULLY = 500, 50
"""Resources per request that returns some settings of each, and per request that returns all."""
MAX_CHANGED_RESOURCES = 200
RELEASE, CERTIFICATES, FEATURE = "penstock.release", "penstock.certificates", "penstock.version"

Configs = dict[str, ConfigEntry]


class ConfigAdminClient(TopicAdminClient):
    """Configuration calls; applications use `admin.Admin`."""

    async def topic_configs(self, topic: str) -> Configs:
        """Return all settings of a topic by name."""
        return all_or_raise(await self._describe(TOPIC, [topic], documented=True))[topic]

    async def describe_topic_configs(
        self, topics: Iterable[str], names: Sequence[str] | None = None, *, only_own: bool = False
    ) -> dict[str, Configs | ClientError]:
        """Return settings of many topics: all, those in `names`, or (`only_own`) the topic's overrides, which is much
        faster.

        `UnknownTopic` for missing topics.
        """
        return await self._describe(TOPIC, topics, names, only_own=only_own)

    async def group_configs(self, groups: Iterable[str]) -> dict[str, Configs | ClientError]:
        """Return settings of groups, which can be set before the group exists. Brokers other than Penstock return their
        own group settings, if any.
        """
        return await self._describe(GROUP, groups)

    async def broker_configs(self, broker_id: int, names: Sequence[str] | None = None) -> Configs:
        """Return a broker's settings by name, all or those in `names`, from the broker itself."""
        found = await self._describe(BROKER, [str(broker_id)], names, documented=names is None)
        return all_or_raise(found)[str(broker_id)]

    async def broker_configs_many(
        self, broker_ids: Iterable[int], *, only_own: bool = False
    ) -> dict[int, Configs | ClientError]:
        """Return settings of brokers, all or (`only_own`) dynamic ones, from each broker itself, without retries."""

        async def one(broker_id: int) -> Configs:
            found = await self._describe(BROKER, [str(broker_id)], only_own=only_own, should_retry=no_retry)
            return all_or_raise(found)[str(broker_id)]

        return await gather_each(one, broker_ids)

    async def broker_versions(self) -> dict[int, BrokerVersion | ClientError]:
        """Return the version of each live broker, without retries."""
        return await gather_each(self._version_of, [node.node_id for node in (await self.describe_cluster()).brokers])

    async def broker_certificates(self, broker_ids: Iterable[int]) -> dict[int, list[BrokerCertificate] | ClientError]:
        """Return the certificates that brokers use, from each broker itself, without retries; none without TLS."""
        return await gather_each(self._certificates_of, broker_ids)

    async def _certificates_of(self, node_id: int) -> list[BrokerCertificate]:
        found = await self._describe(BROKER, [str(node_id)], [CERTIFICATES], should_retry=no_retry)
        entry = all_or_raise(found)[str(node_id)].get(CERTIFICATES)
        return [] if entry is None or entry.value is None else parse_certificates(entry.value)

    async def _version_of(self, node_id: int) -> BrokerVersion:
        found = await self._describe(BROKER, [str(node_id)], [RELEASE], should_retry=no_retry)
        release = all_or_raise(found)[str(node_id)].get(RELEASE)
        response = await self._cluster.call(node_id, VERSIONS_REQUEST, ApiVersionsResponse)
        levels = [f.max_version_level for f in response.finalized_features if f.name == FEATURE]
        highest = [f.max_version for f in response.supported_features if f.name == FEATURE]
        return BrokerVersion(release.value or "" if release is not None else "", sum(levels), sum(highest))

    async def _describe(
        self,
        kind: int,
        resources: Iterable[str],
        names: Sequence[str] | None = None,
        *,
        documented: bool = False,
        only_own: bool = False,
        should_retry: Callable[[ClientError], bool] = is_retriable,
    ) -> dict[str, Configs | ClientError]:
        async def request_chunk(chunk: list[str]) -> dict[str, Configs | ClientError]:
            keys = None if names is None else list(names)
            request = describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=keys
                    )
                    for name in chunk
                ],
                include_documentation=documented,
                only_own=only_own,
            )
            if kind == BROKER:
                response = await self._cluster.call(int(chunk[0]), request, describe_configs.DescribeConfigsResponse)
            else:
                response = await self._cluster.call_any(request, describe_configs.DescribeConfigsResponse)
            found: dict[str, Configs | ClientError] = {}
            for r in response.results:
                if r.error_code:
                    found[r.resource_name] = resource_error(kind, r.resource_name, r.error_code, r.error_message)
                else:
                    entries = {c.name: config_entry(c) for c in sorted(r.configs, key=lambda c: c.name)}
                    found[r.resource_name] = {
                        n: e for n, e in entries.items() if not only_own or e.source in OWN_SOURCES
                    }
            return found

        chunk_size = (
            1 if kind == BROKER else MAX_DESCRIBED_PARTLY if only_own or names or kind == GROUP else MAX_DESCRIBED_FULLY
        )
        return await request_each(
            self._cluster, resources, request_chunk, chunk_size=chunk_size, should_retry=should_retry
        )

    async def alter_topic_configs(
        self, topic: str, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic; others stay unchanged (KIP-339)."""
        all_or_raise(await self._alter(TOPIC, {topic: changes}, validate_only))

    async def alter_topic_configs_many(
        self, changes: Mapping[str, Sequence[AlterConfig]], *, validate_only: bool = False
    ) -> dict[str, ClientError | None]:
        """Change settings of many topics; returns an error for each, or None."""
        return await self._alter(TOPIC, changes, validate_only)

    async def alter_group_configs(
        self, changes: Mapping[str, Sequence[AlterConfig]], *, validate_only: bool = False
    ) -> dict[str, ClientError | None]:
        """Change settings of groups; returns an error for each, or None."""
        return await self._alter(GROUP, changes, validate_only)

    async def alter_broker_configs(
        self, broker_id: int | None, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Change dynamic settings of a broker, or of all brokers (None)."""
        name = "" if broker_id is None else str(broker_id)
        all_or_raise(await self._alter(BROKER, {name: changes}, validate_only))

    async def _alter(
        self, kind: int, changes: Mapping[str, Sequence[AlterConfig]], validate_only: bool
    ) -> dict[str, ClientError | None]:
        async def request_chunk(names: list[str]) -> dict[str, ClientError | None]:
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
                response = await self._cluster.call(
                    int(names[0]), request, alter_configs.IncrementalAlterConfigsResponse
                )
            else:
                response = await self._cluster.call_controller(request, alter_configs.IncrementalAlterConfigsResponse)
            return {
                r.resource_name: resource_error(kind, r.resource_name, r.error_code, r.error_message)
                if r.error_code
                else None
                for r in response.responses
            }

        chunk_size = 1 if kind == BROKER else MAX_CHANGED_RESOURCES
        return await request_each(
            self._cluster, changes, request_chunk, chunk_size=chunk_size, should_retry=is_retriable
        )


def config_entry(c: describe_configs.DescribeConfigsResourceResult) -> ConfigEntry:
    """Return a setting from a response."""
    source = SOURCES.get(c.config_source, "default")
    return ConfigEntry(c.name, c.value, source, c.read_only, c.is_sensitive, c.documentation or None)


def resource_error(kind: int, name: str, code: int, message: str | None) -> ClientError:
    """Return the exception for an error code."""
    if kind == TOPIC and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f'topic "{name}" does not exist; run `penstock topic list` to see all topics')
    about = f'topic "{name}"' if kind == TOPIC else f'group "{name}"' if kind == GROUP else f"broker {name}"
    return BrokerError(code, about if name else "the cluster", message)
