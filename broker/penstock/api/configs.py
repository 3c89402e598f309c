"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.config.definition import Kind, Setting, Source
from penstock.control.config_admin import ConfigAdmin
from penstock.control.config_describe import Described, Synonym, describe_all_brokers, describe_broker, describe_topic
from penstock.control.drains import is_removable
from penstock.control.naming import check_name
from penstock.control.results import ALL_BROKERS, AdminError, ConfigChange, Outcome, Resource, unknown_topic
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as alter
from penstock.wire.messages import describe_configs as wire
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages import list_config_resources as listing

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
WITHOUT_SETTINGS = {BROKER_LOGGER, CLIENT_METRICS, GROUP}
"""Types of resources that the protocol has and of which there is none here."""


REMOVABLE = Setting(
    "broker.removable",
    Kind.BOOLEAN,
    None,
    "Whether no partition has a replica on this draining broker any more, so that it can be stopped for good.",
)
"""Not a setting: what comes of `broker.draining`, read where that is set."""


class ConfigsApi:
    """What is set, and setting it."""

    def __init__(self, view: ClusterView, admin: ConfigAdmin, config: BrokerConfig) -> None:
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

    def describe(self, request: wire.DescribeConfigsRequest, context: RequestContext) -> wire.DescribeConfigsResponse:
        return wire.DescribeConfigsResponse(results=[self._described(r, request) for r in request.resources])

    def _described(
        self, resource: wire.DescribeConfigsResource, request: wire.DescribeConfigsRequest
    ) -> wire.DescribeConfigsResult:
        result = wire.DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            found = self._settings(resource.resource_type, resource.resource_name)
        except AdminError as e:
            result.error_code, result.error_message = e.error, e.message
            return result
        wanted = set(resource.configuration_keys) if resource.configuration_keys else None
        result.configs = [
            shown(described, resource.resource_type, request)
            for described in found
            if wanted is None or described.setting.name in wanted
        ]
        return result

    def _settings(self, kind: int, name: str) -> list[Described]:
        if kind == Resource.TOPIC:
            topic = self.view.topics.get(name)
            if topic is None:
                check_name(name)
                raise unknown_topic(name)
            return describe_topic(topic, self.config)
        if kind != Resource.BROKER:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no settings here.")
        if name == ALL_BROKERS:
            return describe_all_brokers(self.config)
        if name != str(self.config.node_id):
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f"This is broker {self.config.node_id}, and broker {name!r} was asked for; an empty name means all.",
            )
        return [*describe_broker(self.config), *self._removable()]

    def _removable(self) -> list[Described]:
        """Whether this broker, which drains, has been emptied: told while it drains alone."""
        if not self.config.broker_draining:
            return []
        text = str(is_removable(self.view, self.config.node_id)).lower()
        return [Described(REMOVABLE, text, Source.DEFAULT, [Synonym(REMOVABLE.name, text, Source.DEFAULT)])]

    async def alter(self, request: alter.AlterConfigsRequest, context: RequestContext) -> alter.AlterConfigsResponse:
        twice = named_twice((r.resource_type, r.resource_name) for r in request.resources)
        responses = []
        for r in request.resources:
            if (r.resource_type, r.resource_name) in twice:
                outcome = NAMED_TWICE
            else:
                settings = [(config.name, config.value) for config in r.configs]
                outcome = await self.admin.replace(r.resource_type, r.resource_name, settings, request.validate_only)
            responses.append(
                alter.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=r.resource_type,
                    resource_name=r.resource_name,
                )
            )
        return alter.AlterConfigsResponse(responses=responses)

    async def alter_incrementally(
        self, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> incremental.IncrementalAlterConfigsResponse:
        twice = named_twice((r.resource_type, r.resource_name) for r in request.resources)
        responses = []
        for r in request.resources:
            if (r.resource_type, r.resource_name) in twice:
                outcome = NAMED_TWICE
            else:
                changes = [ConfigChange(c.name, c.config_operation, c.value) for c in r.configs]
                outcome = await self.admin.change(r.resource_type, r.resource_name, changes, request.validate_only)
            responses.append(
                incremental.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=r.resource_type,
                    resource_name=r.resource_name,
                )
            )
        return incremental.IncrementalAlterConfigsResponse(responses=responses)

    def list_resources(
        self, request: listing.ListConfigResourcesRequest, context: RequestContext
    ) -> listing.ListConfigResourcesResponse:
        """What has settings, of the types asked for or of all; before version 1 client metrics alone (KIP-1142)."""
        if context.version == 0:
            return listing.ListConfigResourcesResponse()
        names = {Resource.TOPIC: sorted(self.view.topics), Resource.BROKER: [str(i) for i in sorted(self.view.brokers)]}
        wanted = set(request.resource_types) or names.keys()
        if not wanted <= names.keys() | WITHOUT_SETTINGS:
            return listing.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return listing.ListConfigResourcesResponse(
            config_resources=[
                listing.ConfigResource(resource_name=name, resource_type=kind)
                for kind, all_names in names.items()
                if kind in wanted
                for name in all_names
            ]
        )


NAMED_TWICE = Outcome(ErrorCode.INVALID_REQUEST, "The resource is named twice in the request.")


def named_twice(resources: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    return {resource for resource, count in Counter(resources).items() if count > 1}


def shown(described: Described, kind: int, request: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResourceResult:
    setting = described.setting
    synonyms = described.synonyms if request.include_synonyms else []
    return wire.DescribeConfigsResourceResult(
        name=setting.name,
        value=described.value,
        read_only=kind == Resource.BROKER and not setting.dynamic,
        config_source=described.source,
        synonyms=[wire.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=setting.kind,
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
