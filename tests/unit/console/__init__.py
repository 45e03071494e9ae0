"""What the console shows, function by function."""
