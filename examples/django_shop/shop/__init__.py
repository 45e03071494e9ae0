"""A shop that confirms orders in the background."""
