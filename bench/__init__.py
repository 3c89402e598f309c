"""Measure Penstock, Apache Kafka and librdkafka's mock broker in one run on one machine.

Run `python -m bench --help` from the root of the checkout. The bench imports no code of the broker: it uses processes
and sockets only, so that it measures every peer with the same instruments.
"""
