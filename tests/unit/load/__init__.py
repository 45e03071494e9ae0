"""Tests of the load that `tenantq bench` makes."""
