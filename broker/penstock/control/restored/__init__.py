"""An etcd restored from a backup: brokers detect it and freeze, and an operator recovers the cluster."""
