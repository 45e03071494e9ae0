"""Clocks, randomness, files and sockets, which are injected into everything else."""
