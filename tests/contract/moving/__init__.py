"""A tenant moves: what goes out comes in as it was."""
