"""What the tests of frameworks share."""
