"""The cluster: its members, the shards that move or have no owner, and the tenants that move."""

from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tenantq.console.context import console_of
from tenantq.console.live_table import LiveTable
from tenantq.console.table import Cell, Column, Row, row_of
from tenantq.domain.formatting import plural, show_time
from tenantq.wire.cluster import ClusterReply, MemberItem

READ_S: Final = 1.0
"""Interval at which the cluster is read."""


def _state(member: MemberItem, _: str) -> Cell:
    if member.draining:
        return Cell("draining", "warning")
    return Cell("assigner", "good") if member.assigner else Cell("member", "good")


MEMBER_COLUMNS: Final = (
    Column("member", "member", 16, 0, lambda one, _: Cell(one.id)),
    Column("state", "state", 9, 1, _state),
    Column("shards", "shards", 6, 2, lambda one, _: Cell(str(one.shards)), right=True),
    Column("load", "load", 6, 3, lambda one, _: Cell(f"{one.load:.2f}"), right=True),
    Column("owns", "owns", 14, 4, lambda _, owned: Cell(owned), width_max=60),
    Column("url", "url", 22, 5, lambda one, _: Cell(one.url), width_max=40),
    Column("region", "region", 8, 6, lambda one, _: Cell(one.region), width_max=20),
    Column("since", "since", 16, 7, lambda one, _: Cell(show_time(one.joined_at)[:16], "dim")),
)
MOVE_COLUMNS: Final = (
    Column("what", "moving", 14, 0, lambda what, *_: Cell(what), width_max=32),
    Column("from", "from", 16, 1, lambda _, source, *__: Cell(source)),
    Column("to", "to", 16, 2, lambda _, __, target, *___: Cell(target)),
    Column("state", "state", 24, 3, lambda _, __, ___, state: Cell(state), width_max=60),
)


def member_rows(found: ClusterReply) -> list[Row]:
    """Return a row for each member."""
    return [
        row_of(MEMBER_COLUMNS, one.id, one, _ranges([shard.number for shard in found.shards if shard.owner == one.id]))
        for one in found.members
    ]


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers as text, such as "0-3 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def move_rows(found: ClusterReply) -> list[Row]:
    """Return a row for each shard without an owner or on its way to another member, and for each tenant that moves."""
    moves = [
        (f"shard {one.number}", one.owner or "no owner", one.moving_to or "", "")
        for one in found.shards
        if one.owner is None or one.moving_to is not None
    ]
    for move in found.moves:
        state = f"{move.stage}, {plural(move.rows, 'row')}" + (f": {move.problem}" if move.problem else "")
        what = f"tenant {move.tenant}" + (f", queue {move.queue}" if move.queue else "")
        moves.append((what, f"shard {move.source}", f"shard {move.target}", state))
    return [row_of(MOVE_COLUMNS, about[0], *about) for about in moves]


class ClusterScreen(ModalScreen[None]):
    """Two tables, read every second."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,C,shift+c", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -large") as dialog:
            dialog.border_title = "Cluster"
            dialog.border_subtitle = "Esc: back"
            yield Static("reading …", markup=False)
            yield LiveTable(MEMBER_COLUMNS, id="cluster-members", empty="no members")
            yield LiveTable(MOVE_COLUMNS, id="cluster-moves", empty="nothing moves")

    def on_mount(self) -> None:
        self.query_one("#cluster-members", LiveTable).focus()
        self.set_interval(READ_S, self.read_cluster)
        self.read_cluster()

    @work(group="page", exclusive=True)
    async def read_cluster(self) -> None:
        """Read the cluster. A server without one says so, and the screen closes."""
        console = console_of(self)
        found = await console.read(console.client.platform().cluster())
        if not self.is_attached:
            return
        if found is None:
            self.dismiss()
            return
        owned = sum(one.owner is not None for one in found.shards)
        text = f"{found.id}: {plural(len(found.members), 'member')}, {owned} of {plural(len(found.shards), 'shard')} served"
        self.query_one(Static).update(f"{text}\n{found.problem}" if found.problem else text)
        self.query_one("#cluster-members", LiveTable).show(member_rows(found))
        self.query_one("#cluster-moves", LiveTable).show(move_rows(found))
