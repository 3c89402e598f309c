"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics, brokers, groups.

One request may name thousands of topics: it is worked off in slices, between which the event loop serves others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from penstock import __version__
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.config.definition import Setting, SettingSource, SettingType
from penstock.control.broker_availability import is_removable
from penstock.control.config_admin import ConfigService
from penstock.control.config_describe import (
    ConfigDescription,
    ConfigSynonym,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_explicit,
    describe_topic,
)
from penstock.control.loggers import describe_loggers
from penstock.control.naming import check_name
from penstock.control.results import (
    ALL_BROKERS,
    AdminError,
    ConfigChange,
    ConfigOutcome,
    ConfigResource,
    store_error,
    unknown_topic,
)
from penstock.state.store import StoreError
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as alter
from penstock.wire.messages import describe_configs as wire
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages import list_config_resources as listing

SLICE = 16
"""Resources that are described before others have their turn."""
CHANGES = 64
"""Resources of one request that are changed at the same time: they share the store's commits."""

R = TypeVar("R")
A = TypeVar("A")

REMOVABLE = Setting(
    "broker.removable",
    SettingType.BOOLEAN,
    None,
    "Whether no partition has a replica on this draining broker any more, so that it can be stopped for good.",
)
"""Not a setting: what comes of `broker.draining`, read where that is set."""
RELEASE = Setting("penstock.release", SettingType.STRING, __version__, "The release that this broker runs.")
"""Not a setting either: a cluster's brokers may differ in it while it is rolled to another."""


class ConfigsApi:
    """What is set, and setting it."""

    def __init__(self, view: ClusterView, admin: ConfigService, config: BrokerConfig) -> None:
        self.view, self.admin, self.config = view, admin, config

    def routes(self) -> list[Route]:
        return [
            Route(wire.DescribeConfigsRequest, wire.DescribeConfigsResponse, self.describe, 1, 4, failed_describe),
            Route(alter.AlterConfigsRequest, alter.AlterConfigsResponse, self.alter, 0, 2, failed_alter),
            Route(
                incremental.IncrementalAlterConfigsRequest,
                incremental.IncrementalAlterConfigsResponse,
                self.alter_incrementally,
                0,
                1,
                failed_incremental,
            ),
            Route(
                listing.ListConfigResourcesRequest,
                listing.ListConfigResourcesResponse,
                self.list_resources,
                0,
                1,
                lambda request, error: listing.ListConfigResourcesResponse(error_code=error),
            ),
        ]

    async def describe(
        self, request: wire.DescribeConfigsRequest, context: RequestContext
    ) -> wire.DescribeConfigsResponse:
        named = [r.resource_name for r in request.resources if r.resource_type == ConfigResource.GROUP]
        groups = await self.admin.groups.describe(named) if named else {}
        results = []
        for number, resource in enumerate(request.resources):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
                if context.exchange.is_disconnected:
                    break
            results.append(self._described(resource, request, groups))
        return wire.DescribeConfigsResponse(results=results)

    def _described(
        self,
        resource: wire.DescribeConfigsResource,
        request: wire.DescribeConfigsRequest,
        groups: dict[str, list[ConfigDescription] | AdminError],
    ) -> wire.DescribeConfigsResult:
        kind, name = resource.resource_type, resource.resource_name
        result = wire.DescribeConfigsResult(resource_type=kind, resource_name=name)
        try:
            found = group_found(groups[name]) if kind == ConfigResource.GROUP else self._settings(kind, name, request)
        except AdminError as e:
            result.error_code, result.error_message = e.error, e.message
            return result
        wanted = set(resource.configuration_keys) if resource.configuration_keys else None
        result.configs = [
            shown(described, kind, request)
            for described in found
            if (wanted is None or described.setting.name in wanted)
            and (not request.only_own or (described.source in OWN and is_set(described, self.config)))
        ]
        return result

    def _settings(self, kind: int, name: str, request: wire.DescribeConfigsRequest) -> list[ConfigDescription]:
        if kind == ConfigResource.TOPIC:
            topic = self.view.topics.get(name)
            if topic is None:
                check_name(name)
                raise unknown_topic(name)
            return (
                describe_explicit(topic.overrides, self.config)
                if request.only_own
                else describe_topic(topic, self.config)
            )
        if kind == ConfigResource.CLIENT_METRICS:
            if not name:
                raise AdminError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return describe_client_metrics()
        if kind == ConfigResource.BROKER_LOGGER:
            self.admin.check_is_local_broker(name)
            return describe_loggers()
        if kind != ConfigResource.BROKER:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no settings here.")
        if name == ALL_BROKERS:
            return describe_all_brokers(self.config)
        self.admin.check_is_local_broker(name)
        synonym = ConfigSynonym(RELEASE.name, __version__, SettingSource.DEFAULT)
        release = ConfigDescription(RELEASE, __version__, SettingSource.DEFAULT, [synonym], is_read_only=True)
        return [*describe_broker(self.config), release, *self._removable()]

    def _removable(self) -> list[ConfigDescription]:
        """Whether this broker, which drains, has been emptied: told while it drains alone."""
        if not self.config.broker_draining:
            return []
        text = str(is_removable(self.view, self.config.node_id)).lower()
        synonym = ConfigSynonym(REMOVABLE.name, text, SettingSource.DEFAULT)
        return [ConfigDescription(REMOVABLE, text, SettingSource.DEFAULT, [synonym], is_read_only=True)]

    async def alter(self, request: alter.AlterConfigsRequest, context: RequestContext) -> alter.AlterConfigsResponse:
        async def change(r: alter.AlterConfigsResource) -> alter.AlterConfigsResourceResponse:
            kind, name, validate_only = r.resource_type, r.resource_name, request.validate_only
            settings = [(config.name, config.value) for config in r.configs]
            if (kind, name) in twice:
                outcome = NAMED_TWICE
            else:
                outcome = await self.admin.replace(kind, name, settings, validate_only)
            return alter.AlterConfigsResourceResponse(
                error_code=outcome.error, error_message=outcome.message, resource_type=kind, resource_name=name
            )

        twice = named_twice((r.resource_type, r.resource_name) for r in request.resources)
        return alter.AlterConfigsResponse(responses=await some_at_a_time(change, request.resources))

    async def alter_incrementally(
        self, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> incremental.IncrementalAlterConfigsResponse:
        async def change(r: incremental.AlterConfigsResource) -> incremental.AlterConfigsResourceResponse:
            kind, name, validate_only = r.resource_type, r.resource_name, request.validate_only
            changes = [ConfigChange(c.name, c.config_operation, c.value) for c in r.configs]
            if (kind, name) in twice:
                outcome = NAMED_TWICE
            else:
                outcome = await self.admin.change(kind, name, changes, validate_only)
            return incremental.AlterConfigsResourceResponse(
                error_code=outcome.error, error_message=outcome.message, resource_type=kind, resource_name=name
            )

        twice = named_twice((r.resource_type, r.resource_name) for r in request.resources)
        return incremental.IncrementalAlterConfigsResponse(responses=await some_at_a_time(change, request.resources))

    async def list_resources(
        self, request: listing.ListConfigResourcesRequest, context: RequestContext
    ) -> listing.ListConfigResourcesResponse:
        """What has settings, of the types asked for or of all; before version 1 client metrics alone (KIP-1142)."""
        if context.version == 0:
            return listing.ListConfigResourcesResponse()
        wanted = set(request.resource_types) or set(ConfigResource)
        if not wanted <= set(ConfigResource):
            return listing.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(broker_id) for broker_id in sorted(self.view.brokers)]
        names = {
            ConfigResource.TOPIC: sorted(self.view.topics),
            ConfigResource.BROKER: brokers,
            ConfigResource.BROKER_LOGGER: brokers,
        }
        if ConfigResource.GROUP in wanted:
            try:
                names[ConfigResource.GROUP] = await self.admin.groups.group_ids()
            except StoreError as e:
                return listing.ListConfigResourcesResponse(error_code=store_error(e))
        return listing.ListConfigResourcesResponse(
            config_resources=[
                listing.ConfigResource(resource_name=name, resource_type=kind)
                for kind, all_names in names.items()
                if kind in wanted
                for name in all_names
            ]
        )


OWN = frozenset({SettingSource.TOPIC, SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.GROUP})
"""What is set at run time, as against what was given at the start and what holds where nothing is."""
NAMED_TWICE = ConfigOutcome(ErrorCode.INVALID_REQUEST, "The resource is named twice in the request.")


def is_set(described: ConfigDescription, config: BrokerConfig) -> bool:
    """Whether a value that is described as set for all brokers really was."""
    name = described.setting.name
    return described.source is not SettingSource.ALL_BROKERS or name in config.given.get(SettingSource.ALL_BROKERS, {})


def group_found(found: list[ConfigDescription] | AdminError) -> list[ConfigDescription]:
    if isinstance(found, AdminError):
        raise found
    return found


async def some_at_a_time(change: Callable[[R], Awaitable[A]], resources: Sequence[R]) -> list[A]:
    """What comes of each resource, in their order."""
    answers: list[A] = []
    for start in range(0, len(resources), CHANGES):
        answers += await asyncio.gather(*map(change, resources[start : start + CHANGES]))
    return answers


def named_twice(resources: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    return {resource for resource, count in Counter(resources).items() if count > 1}


def shown(
    described: ConfigDescription, kind: int, request: wire.DescribeConfigsRequest
) -> wire.DescribeConfigsResourceResult:
    setting = described.setting
    synonyms = described.synonyms if request.include_synonyms else []
    return wire.DescribeConfigsResourceResult(
        name=setting.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=setting.is_sensitive,
        synonyms=[wire.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=0 if kind == ConfigResource.BROKER_LOGGER else setting.kind,
        documentation=setting.documentation if request.include_documentation else None,
    )


def failed_describe(request: wire.DescribeConfigsRequest, error: int) -> wire.DescribeConfigsResponse:
    return wire.DescribeConfigsResponse(
        results=[
            wire.DescribeConfigsResult(error_code=error, resource_type=r.resource_type, resource_name=r.resource_name)
            for r in request.resources
        ]
    )


def failed_alter(request: alter.AlterConfigsRequest, error: int) -> alter.AlterConfigsResponse:
    return alter.AlterConfigsResponse(
        responses=[
            alter.AlterConfigsResourceResponse(
                error_code=error, resource_type=r.resource_type, resource_name=r.resource_name
            )
            for r in request.resources
        ]
    )


def failed_incremental(
    request: incremental.IncrementalAlterConfigsRequest, error: int
) -> incremental.IncrementalAlterConfigsResponse:
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error, resource_type=r.resource_type, resource_name=r.resource_name
            )
            for r in request.resources
        ]
    )
