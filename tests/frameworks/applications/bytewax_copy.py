"""Bytewax: a dataflow from one topic to another, with its progress in a recovery store.

Arguments: bootstrap servers, source topic, target topic, recovery folder.
"""

import sys
from datetime import timedelta
from pathlib import Path

from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.operators import map as transform
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

bootstrap, source, target, folder = sys.argv[1:]
recovery = Path(folder)
if not recovery.exists():
    recovery.mkdir()
    init_db_dir(recovery, 1)
flow = Dataflow("copy")
records = kop.input("in", flow, brokers=bootstrap.split(","), topics=[source], tail=True, batch_size=20)
values = transform("value", records.oks, lambda record: KafkaSinkMessage(record.key, record.value))
kop.output("out", values, brokers=bootstrap.split(","), topic=target)
cli_main(
    flow,
    epoch_interval=timedelta(seconds=0.3),
    recovery_config=RecoveryConfig(recovery, backup_interval=timedelta(0)),
)
