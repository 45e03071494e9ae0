"""The data pipeline: journal segments → bronze → silver → gold, on Spark. Nothing else in tenantq imports pyspark."""
