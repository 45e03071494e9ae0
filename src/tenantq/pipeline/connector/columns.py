"""The columns that a reader returns: checks a schema that the user gave."""

from pyspark.sql.types import StructType

from tenantq.errors import Invalid


def check_schema(schema: StructType, known: StructType, what: str) -> StructType:
    """Return ``schema`` if all its columns are ``known`` ones, else raise Invalid with the wrong column."""
    for field in schema.fields:
        if field.name not in known.names:
            raise Invalid(f"schema: {what} has no column {field.name[:80]!r}; it has {', '.join(known.names)}")
        kind = known[field.name].dataType
        if field.dataType != kind:
            raise Invalid(f"schema: {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    return schema
