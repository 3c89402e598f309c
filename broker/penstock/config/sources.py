"""Merges a broker's settings from a file, the environment and the command line; later sources take precedence.

Called by `node` at startup. Errors name the source.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, unknown_setting
from penstock.config.security_settings import name_from_variable
from penstock.config.topic import TOPIC_SETTINGS

ENVIRONMENT_PREFIX = "PENSTOCK_SET_"
MAX_FILE_BYTES = 1 << 20


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Return the settings from `penstock.toml`, PENSTOCK_SET_* variables and --set options. `defaults` have the lowest
    precedence.

    Raises `InvalidSetting`, naming the source; OSError if the file cannot be read.
    """
    texts: dict[str, str] = dict(defaults or {})
    if file is not None:
        texts.update(check_texts(read_file(file), f"in {file}"))
    texts.update(check_texts(from_environment(environment or {}), "in the environment"))
    texts.update(check_texts(options or {}, "given with --set"))
    return BrokerConfig.from_texts(texts)


def check_texts(texts: Mapping[str, str], source: str) -> Mapping[str, str]:
    """Return `texts` unchanged. Raises `InvalidSetting`, naming the source."""
    for name, text in texts.items():
        try:
            if name not in BROKER_SETTINGS and name in TOPIC_SETTINGS:
                synonyms = TOPIC_SETTINGS[name].synonyms
                hint = f"; set the topics' default with {synonyms[0].name}" if synonyms else " without a broker default"
                raise InvalidSetting(f"{name} is a topic setting{hint}")
            broker_setting(name).parse(text)
        except InvalidSetting as e:
            raise InvalidSetting(f"{e} ({source})") from None
    return texts


def read_file(path: str) -> dict[str, str]:
    """Return the settings of a TOML file, in tables or with dotted names. Raises `InvalidSetting`, OSError."""
    with open(path, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InvalidSetting(f'settings file "{path}" is larger than {MAX_FILE_BYTES} bytes')
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as e:  # ValueError: an integer with thousands of digits
        raise InvalidSetting(f'settings file "{path}" is not valid TOML: {e}') from None
    found: dict[str, str] = {}
    try:
        flatten(document, "", found, path)
    except RecursionError:
        raise InvalidSetting(f'settings file "{path}" is too deeply nested; use num.partitions = 6') from None
    return found


def flatten(table: Mapping[str, Any], prefix: str, found: dict[str, str], path: str) -> None:
    """Add the table's values to `found` by dotted name."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            flatten(value, name + ".", found, path)
        else:
            found[name] = text_of(value, name, path)


def text_of(value: object, name: str, path: str) -> str:
    """Return a TOML value as text. Raises `InvalidSetting`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(v, int | float | str) and not isinstance(v, bool) for v in value):
        return ",".join(str(v) for v in value)
    raise InvalidSetting(
        f'invalid value of {name} in "{path}": it must be a string, a number, true, false, or a list of strings'
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return settings from variables: PENSTOCK_SET_NUM_PARTITIONS=3 is num.partitions=3. Raises `InvalidSetting`."""
    found: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        dotted = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("_", ".")
        name = dotted if dotted in BROKER_SETTINGS else name_from_variable(dotted)
        if name is None:
            raise InvalidSetting(f"{unknown_setting(dotted, BROKER_SETTINGS)} (from the variable {variable})")
        found[name] = text
    return found
