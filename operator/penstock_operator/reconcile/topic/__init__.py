"""Planning of a Topic: compares its spec with the brokers' report and returns actions."""
