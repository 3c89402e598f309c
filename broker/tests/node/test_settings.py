"""Defaults of a single broker and of one in a cluster."""

from __future__ import annotations

from penstock.config.options import UpOptions
from penstock.node.settings import load_config


def test_a_broker_that_is_alone_does_not_let_the_first_member_of_a_group_wait() -> None:
    assert load_config(UpOptions(), {}).group_initial_rebalance_delay_ms == 0
    assert load_config(UpOptions(etcd=["http://127.0.0.1:2379"]), {}).group_initial_rebalance_delay_ms == 3000
    given = UpOptions(settings={"group.initial.rebalance.delay.ms": "7"})
    assert load_config(given, {}).group_initial_rebalance_delay_ms == 7


def test_what_kafka_knows_is_taken_at_the_start_where_it_asks_for_what_holds() -> None:
    config = load_config(UpOptions(settings={"num.io.threads": "1", "remote.log.storage.system.enable": "false"}), {})
    assert config.text("num.io.threads") == "1"
