"""The TCP server: listeners, connections, request framing, response order and backpressure."""
