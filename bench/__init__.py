"""Measures Penstock beside Apache Kafka and librdkafka's mock broker, on one machine, in one run.

Run as ``python -m bench --help`` from the root of the checkout.  Nothing of the broker is imported here: the
bench drives processes and sockets only, so that every peer is measured with the same instruments.
"""
