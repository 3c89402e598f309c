"""Runs brokers, clients, disks, the network and the metadata store on one virtual clock, driven by a seed.

`world` implements time and processes, `machine` what a process runs on; `network`, `disk`, `store` and `clock` simulate
the environment; `scenario` runs brokers and clients and injects faults; `checker` compares the recorded history with
the broker's guarantees.
"""
