"""What the operator needs of the world, as protocols: implemented by `kube` and `brokers`, and by doubles in tests."""
