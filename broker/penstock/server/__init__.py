"""The TCP server: listeners, connections, request framing, response order and backpressure.

`listener` opens sockets and accepts connections. `core` is the state of a connection without I/O, `connection` its
asyncio side, `buffers` and `output` receive and send. `hub`, `limits`, `pressure` and `idle` concern all connections.
"""
