"""Tables show the same figures as text, Markdown and JSON."""

from __future__ import annotations

from dataclasses import asdict

from kbtrain.report.tables import Column, Table, as_markdown, as_text, format_cell

COLUMNS = [Column("set", "text"), Column("n", "count"), Column("A/E"), Column("gain", "points"), Column("p", "decimal")]
TABLE = Table(
    "t", "A | title", "In percent.", COLUMNS, [["a|b", 1200, 0.60094, -0.0004, 0.000123], ["c", 3, None, 0.012, 1.0]]
)


def test_values_are_shown_by_kind() -> None:
    assert [format_cell(0.60094, "percent"), format_cell(-0.012, "points"), format_cell(None, "points")] == [
        "60.1",
        "-1.2",
        "-",
    ]
    assert [format_cell(12, "count"), format_cell("x", "percent"), format_cell(0.000123, "decimal")] == [
        "12",
        "x",
        "0.000123",
    ]
    assert format_cell(-0.0004, "points") == "+0.0"  # no minus zero


def test_text_and_markdown_have_every_row_and_the_note() -> None:
    text = as_text(TABLE)
    assert text.splitlines()[0] == "A | title" and text.endswith("In percent.")
    assert text.splitlines()[2].split() == ["a|b", "1200", "60.1", "+0.0", "0.000123"]
    markdown = as_markdown(TABLE)
    assert "| a\\|b | 1200 | 60.1 | +0.0 | 0.000123 |" in markdown
    assert markdown.startswith("## A \\| title\n")


def test_json_keeps_raw_values() -> None:
    assert asdict(TABLE)["rows"][0] == ["a|b", 1200, 0.60094, -0.0004, 0.000123]
