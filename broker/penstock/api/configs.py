"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of topics, brokers and
groups.

A request may name thousands of topics: the handlers yield to the event loop between slices.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from penstock.api.broker_state import BrokerState
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.config.definition import SettingSource
from penstock.control.config_admin import ConfigService
from penstock.control.config_describe import (
    ConfigDescription,
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

DESCRIBES_PER_SLICE = 16
"""Resources to describe before yielding to the event loop."""
MAX_CONCURRENT_CHANGES = 64
"""Resources of a request that are changed concurrently, which share the store's transactions."""

R = TypeVar("R")
A = TypeVar("A")


class ConfigsApi:
    """Describes and changes settings."""

    def __init__(self, view: ClusterView, admin: ConfigService, config: BrokerConfig, state: BrokerState) -> None:
        self.view, self.admin, self.config, self.state = view, admin, config, state

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(wire.DescribeConfigsRequest, self.describe, failed_describe),
            Route(alter.AlterConfigsRequest, self.alter, failed_alter),
            Route(incremental.IncrementalAlterConfigsRequest, self.alter_incrementally, failed_incremental),
            Route(
                listing.ListConfigResourcesRequest,
                self.list_resources,
                lambda request, error: listing.ListConfigResourcesResponse(error_code=error),
            ),
        ]

    async def describe(
        self, request: wire.DescribeConfigsRequest, context: RequestContext
    ) -> wire.DescribeConfigsResponse:
        """Serve DescribeConfigs 1 to 4; stop early if the client disconnects."""
        group_ids = [r.resource_name for r in request.resources if r.resource_type == ConfigResource.GROUP]
        groups = await self.admin.groups.describe(group_ids) if group_ids else {}
        results = []
        for number, resource in enumerate(request.resources):
            if number % DESCRIBES_PER_SLICE == DESCRIBES_PER_SLICE - 1:
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
            found = (
                group_settings(groups[name]) if kind == ConfigResource.GROUP else self._settings(kind, name, request)
            )
        except AdminError as e:
            result.error_code, result.error_message = e.error, e.message
            return result
        requested = set(resource.configuration_keys) if resource.configuration_keys else None
        result.configs = [
            described_setting(described, kind, request)
            for described in found
            if (requested is None or described.setting.name in requested)
            and (not request.only_own or (described.source in RUNTIME_SOURCES and is_set(described, self.config)))
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
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f'resource type "{kind}" is not supported; use topic, broker, broker logger or group',
            )
        if name == ALL_BROKERS:
            return describe_all_brokers(self.config)
        self.admin.check_is_local_broker(name)
        return [*describe_broker(self.config), *self.state.describe()]

    async def alter(self, request: alter.AlterConfigsRequest, context: RequestContext) -> alter.AlterConfigsResponse:
        """Serve AlterConfigs 0 to 2: replace all settings of each resource."""

        async def change(r: alter.AlterConfigsResource) -> alter.AlterConfigsResourceResponse:
            kind, name, validate_only = r.resource_type, r.resource_name, request.validate_only
            settings = [(config.name, config.value) for config in r.configs]
            if (kind, name) in duplicates:
                outcome = DUPLICATE_RESOURCE
            else:
                outcome = await self.admin.replace(kind, name, settings, validate_only)
            return alter.AlterConfigsResourceResponse(
                error_code=outcome.error, error_message=outcome.message, resource_type=kind, resource_name=name
            )

        duplicates = duplicates_of((r.resource_type, r.resource_name) for r in request.resources)
        return alter.AlterConfigsResponse(responses=await change_all(change, request.resources))

    async def alter_incrementally(
        self, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> incremental.IncrementalAlterConfigsResponse:
        """Serve IncrementalAlterConfigs 0 and 1."""

        async def change(r: incremental.AlterConfigsResource) -> incremental.AlterConfigsResourceResponse:
            kind, name, validate_only = r.resource_type, r.resource_name, request.validate_only
            changes = [ConfigChange(c.name, c.config_operation, c.value) for c in r.configs]
            if (kind, name) in duplicates:
                outcome = DUPLICATE_RESOURCE
            else:
                outcome = await self.admin.change(kind, name, changes, validate_only)
            return incremental.AlterConfigsResourceResponse(
                error_code=outcome.error, error_message=outcome.message, resource_type=kind, resource_name=name
            )

        duplicates = duplicates_of((r.resource_type, r.resource_name) for r in request.resources)
        return incremental.IncrementalAlterConfigsResponse(responses=await change_all(change, request.resources))

    async def list_resources(
        self, request: listing.ListConfigResourcesRequest, context: RequestContext
    ) -> listing.ListConfigResourcesResponse:
        """Return the resources with settings, by type; version 0 lists only client metrics (KIP-1142)."""
        if context.version == 0:
            return listing.ListConfigResourcesResponse()
        requested = set(request.resource_types) or set(ConfigResource)
        if not requested <= set(ConfigResource):
            return listing.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(broker_id) for broker_id in sorted(self.view.brokers)]
        names = {
            ConfigResource.TOPIC: sorted(self.view.topics),
            ConfigResource.BROKER: brokers,
            ConfigResource.BROKER_LOGGER: brokers,
        }
        if ConfigResource.GROUP in requested:
            try:
                names[ConfigResource.GROUP] = await self.admin.groups.group_ids()
            except StoreError as e:
                return listing.ListConfigResourcesResponse(error_code=store_error(e))
        return listing.ListConfigResourcesResponse(
            config_resources=[
                listing.ConfigResource(resource_name=name, resource_type=kind)
                for kind, all_names in names.items()
                if kind in requested
                for name in all_names
            ]
        )


RUNTIME_SOURCES = frozenset({SettingSource.TOPIC, SettingSource.BROKER, SettingSource.ALL_BROKERS, SettingSource.GROUP})
"""Sources that are set at run time, as opposed to static configuration and defaults."""
DUPLICATE_RESOURCE = ConfigOutcome(
    ErrorCode.INVALID_REQUEST, "the resource appears twice in the request; merge its entries"
)


def is_set(described: ConfigDescription, config: BrokerConfig) -> bool:
    """Return whether a value described as cluster-wide is set explicitly."""
    name = described.setting.name
    return described.source is not SettingSource.ALL_BROKERS or name in config.source_texts.get(
        SettingSource.ALL_BROKERS, {}
    )


def group_settings(found: list[ConfigDescription] | AdminError) -> list[ConfigDescription]:
    """Return the settings of a group. Raises AdminError if they could not be read."""
    if isinstance(found, AdminError):
        raise found
    return found


async def change_all(change: Callable[[R], Awaitable[A]], resources: Sequence[R]) -> list[A]:
    """Change resources concurrently in slices; return the outcomes in order."""
    answers: list[A] = []
    for start in range(0, len(resources), MAX_CONCURRENT_CHANGES):
        answers += await asyncio.gather(*map(change, resources[start : start + MAX_CONCURRENT_CHANGES]))
    return answers


def duplicates_of(resources: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return the resources that appear more than once."""
    return {resource for resource, count in Counter(resources).items() if count > 1}


def described_setting(
    described: ConfigDescription, kind: int, request: wire.DescribeConfigsRequest
) -> wire.DescribeConfigsResourceResult:
    """Return the entry of a setting in a DescribeConfigs response."""
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
    """Return the response to DescribeConfigs with an error for each resource."""
    return wire.DescribeConfigsResponse(
        results=[
            wire.DescribeConfigsResult(error_code=error, resource_type=r.resource_type, resource_name=r.resource_name)
            for r in request.resources
        ]
    )


def failed_alter(request: alter.AlterConfigsRequest, error: int) -> alter.AlterConfigsResponse:
    """Return the response to AlterConfigs with an error for each resource."""
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
    """Return the response to IncrementalAlterConfigs with an error for each resource."""
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error, resource_type=r.resource_type, resource_name=r.resource_name
            )
            for r in request.resources
        ]
    )
