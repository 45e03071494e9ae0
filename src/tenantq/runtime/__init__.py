"""Clocks, randomness, files and sockets: what the rest is given from outside."""
