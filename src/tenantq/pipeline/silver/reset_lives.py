"""Which files of ``message_lives`` have messages that resets of their queues end at another time than the file says."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantq.pipeline.arrow_columns import Vocabulary, numbers, whole
from tenantq.pipeline.silver.life_merge import OPEN
from tenantq.pipeline.silver.queue_resets import ResetIndex


def are_changed(file: Path, resets: ResetIndex, tenants: set[str]) -> bool:
    """Return whether ``resets`` change the end of a message of these ``tenants``. This process reads the file, without Spark."""
    with pq.ParquetFile(file) as opened:
        wanted = pc.is_in(opened.read(["tenant"], use_threads=False)["tenant"], pa.array(sorted(tenants), pa.string()))
        if not pc.any(wanted).as_py():
            return False
        lives = opened.read(["tenant", "ended_at", "last"], use_threads=False).filter(wanted)
    last = whole(lives["last"])
    still = pc.is_in(last.field("state"), pa.array(OPEN))
    lives, last = lives.filter(still), last.filter(still)
    places = [Vocabulary(column) for column in (last.field("shard"), lives["tenant"], last.field("queue"))]
    shard, tenant, queue = ((words, words.ranks[0]) for words in places)
    around = resets.around(
        shard, tenant, queue, numbers(last.field("seq")), numbers(last.field("place")), tie_passed=True
    )
    return bool(((around.next_at >= 0) & (around.next_at != numbers(lives["ended_at"], -1))).any())
