"""Planning of a User: compares its spec with credentials, ACLs, quotas and Secret, and returns actions."""
