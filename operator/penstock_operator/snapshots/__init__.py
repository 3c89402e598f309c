"""Snapshots of etcd: the program that the operator's snapshot pods run (`python -m penstock_operator.snapshots`)."""
