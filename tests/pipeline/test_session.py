"""The Spark session."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.pipeline.session import open_session

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_columns_are_built_without_looking_up_classes_in_java(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup searches all jars, and a run builds thousands of columns."""
    asked: list[str] = []
    java = spark.sparkContext._jvm  # there is no public name
    assert java is not None
    for view in (type(java), type(java.functions)):
        monkeypatch.setattr(view, "__getattr__", lambda _, name: asked.append(name))
    built = f.when(f.col("id") > f.lit(1), f.coalesce(f.col("id"), f.lit(2)))
    monkeypatch.undo()
    assert not asked
    assert [row[0] for row in spark.range(3).select(built).collect()] == [None, None, 2]


def test_another_connection_to_java_gets_the_same_session(spark: SparkSession) -> None:
    """Java knows the active session only in the thread that serves the first connection."""
    with ThreadPoolExecutor(1) as other:
        assert other.submit(open_session).result() is spark
