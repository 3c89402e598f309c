"""What the tests of all rooms share: brokers as processes, topics, records written by another client."""
