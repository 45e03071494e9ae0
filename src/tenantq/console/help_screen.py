"""The screen of all keys."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS: Final = (
    (
        "Everywhere",
        (
            ("t", "switch tenant"),
            ("1 … 9, Ctrl+1 … 9", "switch to the tenant of that number"),
            ("Shift+T", "manage the tenant: settings, quotas"),
            ("Ctrl+T", "create a tenant"),
            ("Tab, Shift+Tab", "next and previous panel"),
            ("z", "one panel over the whole width, and back"),
            ("/", "filter the panel by typing; Esc ends it"),
            ("r", "refresh now"),
            ("?", "this help"),
            ("q, Ctrl+C", "quit"),
        ),
    ),
    (
        "Tenants",
        (
            ("Enter", "show this tenant"),
            ("s, Shift+S", "sort by the next column; turn it around"),
            ("e", "edit weight, quotas and limits"),
            ("u", "suspend, or let work again"),
        ),
    ),
    (
        "Queues",
        (
            ("Enter", "open the queue: messages, dead letters, settings"),
            ("p", "pause, or deliver again"),
            ("d", "redrive dead letters: counts first, then asks"),
            ("x", "purge: asks for the name and a reason"),
            ("n, b", "in a queue: next and previous page"),
        ),
    ),
    (
        "Security",
        (
            ("a, k, g", "audit trail, keys, grants"),
            ("c", "denied, changes, errors, everything"),
            ("f", "filter the audit trail: result, who, how far back"),
            ("o", "this tenant, or the whole platform"),
            ("m", "more: older rows"),
            ("w", "what this principal may do, in all tenants"),
            ("v", "revoke the key or grant"),
        ),
    ),
)
_WIDTH: Final = 20


class HelpScreen(ModalScreen[None]):
    """All keys, by panel."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """Lay out the keys."""
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Keys"
            dialog.border_subtitle = "Esc: back"
            parts = [f"{place}\n" + "\n".join(f"  {key:{_WIDTH}} {does}" for key, does in keys) for place, keys in KEYS]
            parts.append(
                "What a credential may not see says 'not granted'. Everything done here is in the audit trail."
            )
            yield Static("\n\n".join(parts), markup=False)
