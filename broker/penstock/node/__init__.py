"""Assembles a broker: creates its components and connects them. `penstock up` runs it.

`broker.BrokerNode` is a broker from start to stop; `process` runs one until a signal. Its dependencies on the machine
(clock, files, store, network, randomness) come from `environment`, so that tests and simulations can replace them.
"""
