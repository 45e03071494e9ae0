"""The gates between transports and engine, each one file with one job: who calls, what they may do, how much and how fast."""
