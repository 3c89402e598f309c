"""Where a broker's settings come from: a file, the environment, the command line; what is said later wins.

Called by `node` at the start. Unknown names are errors that say where they stand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, parse_broker_setting
from penstock.config.definition import InvalidSetting, unknown
from penstock.config.topic import TOPIC_SETTINGS

ENVIRONMENT_PREFIX = "PENSTOCK_SET_"
MAX_FILE_BYTES = 1 << 20


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The settings from a `penstock.toml`, from PENSTOCK_SET_* variables, and from --set options by name; `defaults`
    hold where none of these says otherwise.

    Raises `InvalidSetting`, naming the place; OSError where the file cannot be read.
    """
    texts: dict[str, str] = dict(defaults or {})
    if file is not None:
        texts.update(checked(read_file(file), f"in {file}"))
    texts.update(checked(from_environment(environment or {}), "in the environment"))
    texts.update(checked(options or {}, "given with --set"))
    return BrokerConfig.from_texts(texts)


def parse_options(options: Iterable[str]) -> dict[str, str]:
    """`name=value` texts, as of --set. Raises `InvalidSetting` where there is no `=`."""
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.strip():
            raise InvalidSetting(f"--set {option}: it must be name=value, as in --set num.partitions=3")
        found[name.strip()] = value
    return found


def checked(texts: Mapping[str, str], place: str) -> Mapping[str, str]:
    for name, text in texts.items():
        try:
            if name not in BROKER_SETTINGS and name in TOPIC_SETTINGS:
                synonyms = TOPIC_SETTINGS[name].synonyms
                cure = f"; the default for topics is set with {synonyms[0].name}" if synonyms else " and has no default"
                raise InvalidSetting(f"{name} is a topic's setting{cure}")
            parse_broker_setting(name, text)
        except InvalidSetting as e:
            raise InvalidSetting(f"{e} ({place})") from None
    return texts


def read_file(path: str) -> dict[str, str]:
    """The settings in a TOML file, in tables or by dotted names. Raises `InvalidSetting`, OSError."""
    with open(path, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InvalidSetting(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as e:  # a number of thousands of digits is a ValueError, too
        raise InvalidSetting(f"{path} is not valid TOML: {e}") from None
    found: dict[str, str] = {}
    try:
        flatten(document, "", found, path)
    except RecursionError:
        raise InvalidSetting(f"{path}: tables are nested too deeply; write settings as num.partitions = 6") from None
    return found


def flatten(table: Mapping[str, Any], prefix: str, found: dict[str, str], path: str) -> None:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            flatten(value, name + ".", found, path)
        else:
            found[name] = text_of(value, name, path)


def text_of(value: object, name: str, path: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(v, int | float | str) and not isinstance(v, bool) for v in value):
        return ",".join(str(v) for v in value)
    raise InvalidSetting(f"{name} in {path} must be a text, a number, true, false, or a list of texts")


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """PENSTOCK_SET_NUM_PARTITIONS=3 is num.partitions=3. Raises `InvalidSetting` for an unknown name."""
    found: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("_", ".")
        if name not in BROKER_SETTINGS:
            raise InvalidSetting(f"{unknown(name, BROKER_SETTINGS)} (from the variable {variable})")
        found[name] = text
    return found
