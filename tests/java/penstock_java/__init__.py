"""Common parts of the tests with Apache's Java client: the list of scenarios, how they are built and run."""
