"""Silver: one row per message life, queue hour and tenant change, computed from bronze."""
