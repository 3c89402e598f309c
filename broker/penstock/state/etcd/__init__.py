"""The `Store` on etcd; see `store`. Importing only this package loads neither gRPC nor etcd's messages."""

import os

# gRPC writes each failed handshake to standard error. The same failures are raised as errors, which the callers log.
# gRPC reads the variable once, when it is loaded; a value set by the user is kept.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
