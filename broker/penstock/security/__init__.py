"""Who a client is and what it may do: authentication mechanisms, credentials, ACLs, quotas.

- `principal`: the identity of a connection
- `authorizer`: the interface that request handlers ask, and the one that allows everything
"""
