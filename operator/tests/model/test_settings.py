"""Kafka settings that a resource can have, and the errors for others."""

from __future__ import annotations

import pytest

from penstock_operator.model.settings import (
    OWNED_BY_OPERATOR,
    TOPIC_OWNED_BY_OPERATOR,
    broker_rules,
    broker_settings,
    group_settings,
    topic_rules,
    topic_settings,
)

# `operator/tests/crds/test_refused.py` tests the rules on a real API server.


@pytest.mark.parametrize(
    ("rules", "name", "reason"),
    [(broker_rules, *item) for item in OWNED_BY_OPERATOR.items()]
    + [(topic_rules, *item) for item in TOPIC_OWNED_BY_OPERATOR.items()],
)
def test_what_the_operator_decides_is_refused_with_what_to_do_instead(rules, name: str, reason: str) -> None:
    (rule,) = [rule for rule in rules() if f"!('{name}' in self)" in rule.cel.split(" && ")]
    assert name in rule.message
    assert rule.message.endswith(f"cannot be set here: {reason}")


def test_no_setting_of_the_operators_own_is_offered() -> None:
    offered = {*topic_settings(), *broker_settings(), *group_settings()}
    assert not [name for name in offered if name.startswith("penstock.")]
    assert not offered & {*TOPIC_OWNED_BY_OPERATOR}
