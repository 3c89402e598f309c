"""`penstock up --brokers N`: runs an etcd and N brokers on this machine for development. Called by `cli.up`.

`command` locks the directory, `supervisor` starts and stops the processes, `guard` ties each one's life to the
supervisor's.
"""
