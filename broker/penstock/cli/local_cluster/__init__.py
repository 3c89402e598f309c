"""`penstock up --brokers N`: an etcd and N brokers on this machine, for development. Called by `cli.up`.

`command` checks what was asked for, `supervisor` starts and ends the processes, `guard` ties each to this one's life.
"""
