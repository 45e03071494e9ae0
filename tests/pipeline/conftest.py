"""Fixtures: one Spark session for all tests, a journal's directory and a lake."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from tenantq.journal.signing import SigningKey
from tenantq.journal.target import DirectoryTarget
from tenantq.pipeline.lake import Lake
from tenantq.pipeline.run import Options, RunReport, run
from tenantq.pipeline.session import open_session
from tests.pipeline.journals import DAY, START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    RunPipeline = Callable[..., RunReport]

NOW = START + 365 * DAY


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session on two cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session(
            "local[2]",
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
                "spark.driver.memory": "1g",
                "spark.sql.codegen.wholeStage": "false",
            },
        )
    yield session
    session.stop()


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """Return the key that signs."""
    return SigningKey.load_or_make(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> DirectoryTarget:
    """Where segments are."""
    (tmp_path / "journal").mkdir()
    return DirectoryTarget(tmp_path / "journal")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake that is empty."""
    return Lake(tmp_path / "lake")


@pytest.fixture
def pipeline(spark: SparkSession, journal: DirectoryTarget, lake: Lake) -> RunPipeline:
    """Run the pipeline over the journal."""

    def once(**options: object) -> RunReport:
        into = options.pop("lake", lake)
        return run(spark, str(journal.path), into, Options(**{"now_ms": NOW, **options}))  # type: ignore[arg-type]

    return once
