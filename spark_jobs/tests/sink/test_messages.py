"""Messages between tasks, planner and transaction service arrive unchanged or not at all."""

from __future__ import annotations

import msgspec
import pytest

from penstock_spark.model.connection import ConnectionOptions, Sasl, Tls
from penstock_spark.sink.messages import LENGTH, MalformedFrame, NumberedMessage, PlanMessage, frame, read_request


def plan() -> PlanMessage:
    tls = Tls(ca_file="/ca.pem", certificate_file="/me", key_file="/me", key_password="k", check_hostname=False)
    sasl = Sasl("SCRAM-SHA-256", "alice", "geheim")
    return PlanMessage("run", ConnectionOptions("a:1,b:2", tls, sasl, give_up_ms=5), "id", 60_000, "t", True)


def test_a_plan_brings_all_that_reaching_the_brokers_takes() -> None:
    sent = NumberedMessage(7, plan())
    assert read_request(frame(sent)[LENGTH.size :]) == sent


def test_nothing_that_is_printed_of_it_holds_a_password() -> None:
    assert "geheim" not in repr(plan())
    assert "'k'" not in repr(plan())


def test_a_mechanism_that_nobody_knows_is_no_request() -> None:
    encoded = msgspec.msgpack.encode(NumberedMessage(7, plan())).replace(b"SCRAM-SHA-256", b"SCRAM-SHA-999")
    with pytest.raises(MalformedFrame, match="SCRAM-SHA-999"):
        read_request(encoded)
