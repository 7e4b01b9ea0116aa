"""placewright."""
