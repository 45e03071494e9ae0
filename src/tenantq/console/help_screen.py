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
            ("1 … 9, Ctrl+1 … 9", "show the tenant with that number"),
            ("Shift+T", "manage the tenant: settings, quotas"),
            ("Ctrl+T", "create a tenant"),
            ("Tab, Shift+Tab", "next and previous panel"),
            ("z", "zoom: show only this panel, or all"),
            ("/", "filter the panel while you type; Esc clears the filter"),
            ("r", "refresh now"),
            ("?", "this help"),
            ("q, Ctrl+C", "quit"),
        ),
    ),
    (
        "Tenants",
        (
            ("Enter", "show the queues of this tenant"),
            ("s, Shift+S", "sort by the next column; reverse the order"),
            ("e", "edit weight, quotas and limits"),
            ("u", "suspend or resume"),
        ),
    ),
    (
        "Queues",
        (
            ("Enter", "open the queue: messages, dead letters, settings"),
            ("p", "pause or resume deliveries"),
            ("d", "redrive dead letters: counts them, then asks"),
            ("x", "purge: asks for the name and a reason"),
            ("n, b", "in a queue: next and previous page"),
        ),
    ),
    (
        "Security",
        (
            ("a, k, g", "audit trail, keys, grants"),
            ("c", "next filter: denied, changes, errors, everything"),
            ("f", "filter the audit trail by result, principal, action or time"),
            ("o", "audit trail of this tenant, or of the platform"),
            ("m", "read older rows"),
            ("w", "rights of this principal in all tenants"),
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
            parts.append("'not granted' marks what this credential cannot see. The audit trail records every action.")
            yield Static("\n\n".join(parts), markup=False)
