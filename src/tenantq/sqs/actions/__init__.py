"""The actions of Amazon SQS, grouped by what they are about."""
