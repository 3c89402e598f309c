"""A world in which brokers, clients, disks, the network and the store run on one virtual clock, chosen by a seed.

`world` holds time and processes, `machine` what a machine has; `network`, `disk`, `store` and `clock` stand in for the
outside; `scenario` runs brokers and clients with faults in it, `checker` looks at what was promised and what was seen.
"""
