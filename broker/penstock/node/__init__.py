"""A broker put together: the one place where its parts are made and handed to each other. `penstock up` runs it.

`broker.Node` is a broker from start to stop; `process` runs one until it is told to end. What it reaches outside of
itself (clock, files, store, network, chance) comes from `outside`, so that tests and simulations hand in their own.
"""
