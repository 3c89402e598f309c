"""Penstock: a distributed message queue that speaks the Kafka protocol.

The rooms of this package, from the bottom up, are `runtime`, `wire`, `config`, `state`, `log`, `replica`,
`control`, `group`, `txn`, `api`, `server`, `http`, `client`, `cli` and `node`; each imports only what is below it
(CONTRIBUTING.md gives the tour).
"""

__version__ = "0.1.0"
