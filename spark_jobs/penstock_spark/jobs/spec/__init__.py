"""Job files: parsing, validation and the types of their fields."""
