"""Protocols for the API server and the brokers, implemented by `kube` and `brokers`, and by test doubles."""
