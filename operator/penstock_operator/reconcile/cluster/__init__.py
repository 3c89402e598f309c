"""Reconcile a Cluster: compare its spec with what is observed, and decide what to change."""
