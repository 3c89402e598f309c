"""`ports.kube` on the official `kubernetes` package, used for its connection alone: no model classes, JSON as it is."""
