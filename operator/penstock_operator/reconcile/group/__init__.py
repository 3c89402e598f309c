"""Reconcile a ConsumerGroup: offsets to reset, lag to report."""
