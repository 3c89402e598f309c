"""An etcd restored from a backup: noticed by brokers, which freeze, and made the truth again by an operator."""
