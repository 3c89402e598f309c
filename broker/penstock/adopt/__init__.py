"""`penstock cluster adopt`: turns a single broker, with all its data, into the first broker of a new cluster.

Called by the command line. It copies the embedded store of a data directory into an etcd without a cluster; the
partition logs stay in place.
"""
