"""Tests of the load generator of `tenantq bench`."""
