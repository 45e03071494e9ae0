"""Pages and plots: figures, alternative text and readable colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenantq.errors import Invalid
from tenantq.pipeline.page import number_format
from tenantq.pipeline.page.chart import ReferenceLine, Series, draw_chart
from tenantq.pipeline.page.renderer import render, visible, write_page

CSS = (Path(number_format.__file__).parent / "templates" / "page.css").read_text()


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number_format.count(1_234_567), "1,234,567"),
        (number_format.short(999_999), "1M"),
        (number_format.size(1_500_000), "1.5 MB"),
        (number_format.duration(90_000), "1.5 min"),
        (number_format.duration(None), "–"),  # noqa: RUF001  # a dash is what is meant
        (number_format.percent(0.9995), "99.95 %"),
        (number_format.percent(0.83793), "83.8 %"),
        (number_format.percent(0.9999999), "> 99.999 %"),
        (number_format.percent(1e-9), "< 0.001 %"),
        (number_format.quantity("0.0000012", "gb_hours"), "1.2 kB-hours"),
        (number_format.quantity("1.5", "gb_in"), "1.5 GB"),
        (number_format.quantity("12345", "operations"), "12,345"),
        (number_format.per("1.0000000000", "gb_hours"), "1 GB-hour"),
        (number_format.per("1000.0000000000", "messages_in"), "1,000 messages added"),
        (number_format.trend(-1_500_000, number_format.size), "−1.5 MB"),  # noqa: RUF001  # a minus sign
        (number_format.change(100, 120), "+20 %"),
        (number_format.change(100, 50), "−50 %"),  # noqa: RUF001  # a minus sign
        (number_format.change(0, 7), "new"),
        (number_format.exact("12345.6700000000"), "12,345.67"),
        (number_format.exact("-1234.50"), "-1,234.50"),
        (number_format.exact("0.0000000001"), "0.0000000001"),
        (number_format.exact("100.00"), "100.00"),
        (number_format.exact("1000.0000000000"), "1,000"),
    ],
)
def test_figures_are_rounded_for_reading(shown: str, text: str) -> None:
    """But never to all or none; money is exact to the cent."""
    assert shown == text


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**20), max_value=10**20))
def test_an_exact_figure_loses_nothing(number: object) -> None:
    """Without its separators it equals the decimal in the table."""
    from decimal import Decimal  # noqa: PLC0415  # only here

    assert Decimal(number_format.exact(f"{number:f}").replace(",", "")) == number


@example([5e-324], [])
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1e15)), max_size=40),
    st.lists(st.floats(0, 1e15), max_size=3),
)
def test_every_plot_stays_in_its_frame(values: list[float | None], levels: list[float]) -> None:
    """For any values nothing is drawn outside, and no coordinate is NaN."""
    places = [f"2026-01-{at:02d}" for at in range(len(values))]
    series = [Series(name="a", values=values, kind="bar"), Series(name="b", values=values, kind="area")]
    drawn = str(draw_chart("t", places, series, levels=[ReferenceLine(name="l", value=value) for value in levels]))
    for axis, limit in (("x1|x2|x|cx", 420), ("y1|y2|y|cy", 190)):
        for found in re.findall(rf' (?:{axis})="([^"]+)"', drawn):
            assert -1 <= float(found) <= limit
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("infinity", "")


def test_a_plot_has_alternative_text_with_escaped_names() -> None:
    """It has the range, the last value and the level."""
    drawn = draw_chart(
        'Messages "<b>', ["2026-01-01", "2026-01-02"], [Series(name="<script>", values=[1.0, 3.0])],
        levels=[ReferenceLine(name="quota", value=5.0)],
    )  # fmt: skip
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    words = re.findall(r'role="img" aria-label="([^"]+)"', drawn)[0]
    assert words.endswith("lowest 1, highest 3 at 2026-01-02, last 3. quota: 5.")
    assert "no data" in draw_chart("Nothing", [], [])


def test_deceptive_unicode_is_escaped() -> None:
    """Direction marks, control characters and zero-width characters are replaced."""
    assert visible("a\u202eb\x00c\u200bd\ud800") == "a\ufffdb\ufffdc\ufffdd\ufffd"
    assert b"\xe2\x80\xae" not in render("empty.html", why="\u202e<i>")
    assert b"&lt;i&gt;" in render("empty.html", why="\u202e<i>")


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_has_enough_contrast(scheme: str) -> None:
    """At least 4.5 for text and 3 for graphics, in every colour scheme."""
    blocks = re.findall(r":root \{([^}]+)\}", CSS)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[("light", "dark", "print").index(scheme)]))
    for ink in ("ink", "soft", "accent"):
        for ground in ("paper", "card"):
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for mood in ("good", "warn", "bad"):
        assert _contrast(colours[mood], colours[f"{mood}-bg"]) >= 4.5, mood
    for number in range(1, 7):
        assert _contrast(colours[f"c{number}"], colours["card"]) >= 3, number


def test_an_unwritable_path_is_a_typed_error(tmp_path: Path) -> None:
    """A file where a directory is needed; nothing is left behind."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be written"):
        write_page(tmp_path / "file" / "page.html", b"")


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
