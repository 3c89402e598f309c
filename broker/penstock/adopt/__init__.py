"""`penstock cluster adopt`: a broker that was alone, with all it has, becomes the first of a new cluster.

The command line calls it. It reads the embedded store of a data directory and writes an etcd that holds no cluster yet;
the partitions' logs stay where they are.
"""
