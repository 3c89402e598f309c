"""Names and header versions of the protocol's APIs. The table of APIs is generated: see `api_table`.

The dispatcher identifies requests by API key; the client negotiates with the versions.
"""

from __future__ import annotations

from penstock.wire.api_table import APIS, OTHER_APIS, ApiDescription, ApiKey

__all__ = [
    "APIS",
    "ApiDescription",
    "ApiKey",
    "api_name",
    "request_header_version",
    "response_header_version",
]


def api_name(api_key: int) -> str:
    """Return an API's name for messages, also if the key is unknown."""
    api = APIS.get(api_key)
    return api.name if api is not None else OTHER_APIS.get(api_key, f"with key {api_key}")


def request_header_version(api_key: int, version: int) -> int:
    """Return 2 (with tagged fields) for flexible versions, else 1; 1 for unknown APIs."""
    api = APIS.get(api_key)
    return 2 if api is not None and version >= api.flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return 1 (with tagged fields) for flexible versions, else 0. Always 0 for ApiVersions, whose version is not
    negotiated yet (KIP-511).
    """
    api = APIS.get(api_key)
    flexible = api is not None and version >= api.flexible_from
    return 1 if flexible and api_key != ApiKey.API_VERSIONS else 0
