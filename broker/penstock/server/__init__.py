"""Listeners and connections: frames, order, backpressure. Does not know what a request means."""
