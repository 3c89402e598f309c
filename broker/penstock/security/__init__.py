"""Who a client is and what it may do: authentication mechanisms, credentials, ACLs, quotas.

- `principal`: the identity of a connection
- `authorizer`: the interface that request handlers ask, and the one that allows everything
- `acl_authorizer`: decides by the ACLs in the cluster view, with the index of `acl_index`
- `acl_filters`: validation of new ACLs, and filters
- `audit`: the log of denied and administrative operations
"""
