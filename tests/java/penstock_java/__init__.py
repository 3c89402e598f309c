"""What the tests with Apache's Java client share: which scenarios there are, how they are built and run."""
