"""The actions of Amazon SQS, grouped by topic."""
