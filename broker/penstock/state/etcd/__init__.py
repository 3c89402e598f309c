"""The `Store` on etcd. `store` is the way in; importing this package alone loads neither gRPC nor etcd's messages."""

import os

# gRPC writes lines of its own to standard error, for each handshake that fails. All that they say comes as errors too,
# and those are logged by whoever gets them. It looks at this once, when it is loaded; somebody who set it is heard.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
