"""Alerts: thresholds that the server watches, and the people it notifies."""
