"""Reconcile a Topic: compare its spec with what brokers report, and decide what to change."""
