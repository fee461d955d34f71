"""Numbers and tables as text and as Markdown."""

from kbtrain.report.tables import Column, Table, as_markdown, as_text, escape_markdown, format_cell
from kbtrain.show import aligned, count_of, first_ids, number, p_value, signed

COLUMNS = [Column("set", "text"), Column("n", "count"), Column("A/E"), Column("gain", "points"), Column("p", "decimal")]
TABLE = Table(
    "t", "A | title", "In percent.", COLUMNS, [["a|b", 1200, 0.60094, -0.0004, 0.000123], ["c", 3, None, 0.012, 1.0]]
)


def test_values_are_shown_by_kind():
    cells = [format_cell(0.60094, "percent"), format_cell(-0.012, "points"), format_cell(None, "points")]
    assert cells == ["60.1", "-1.2", "-"]
    cells = [format_cell(12, "count"), format_cell("x", "percent"), format_cell(0.000123, "decimal")]
    assert cells == ["12", "x", "0.000123"]
    assert format_cell(-0.0004, "points") == "+0.0"  # no minus zero


def test_text_and_markdown_have_every_row_and_the_note():
    text = as_text(TABLE)
    assert text.splitlines()[0] == "A | title" and text.endswith("In percent.")
    assert text.splitlines()[2].split() == ["a|b", "1200", "60.1", "+0.0", "0.000123"]
    markdown = as_markdown(TABLE)
    assert "| a\\|b | 1200 | 60.1 | +0.0 | 0.000123 |" in markdown
    assert markdown.startswith("## A \\| title\n")


def test_numbers_lose_the_leading_zero_and_the_sign_of_zero():
    assert [number(v) for v in (0.5, 1.0, -0.25, -0.0001, None)] == [".500", "1.000", "-.250", ".000", "-"]
    assert [signed(v) for v in (0.5, -0.25, 0.0, -0.0001)] == ["+.500", "-.250", "+.000", "+.000"]


def test_counts_take_their_plural():
    assert [count_of(n, "answer") for n in (0, 1, 2)] == ["0 answers", "1 answer", "2 answers"]
    assert count_of(2, "process", "es") == "2 processes"
    assert [first_ids(list(ids), "turn") for ids in ("a", "abcd")] == ["1 turn (a)", "4 turns (a, b, c, ...)"]


def test_columns_are_aligned():
    assert aligned(("a", "bb"), [("ccc", "1"), ("d", "22")]) == "a    bb\nccc   1\nd    22"


def test_columns_are_aligned_where_chinese_stands_in_them():
    assert aligned(("a", "bb"), [("医学", "1"), ("d", "选Ａ")]) == "a       bb\n医学     1\nd     选Ａ"


def test_markdown_is_escaped_but_words_stay_readable():
    assert escape_markdown("kbm_benefit _x_ *y* | <b>\n# z") == "kbm_benefit \\_x\\_ \\*y\\* \\| &lt;b&gt;<br>\\# z"


def test_a_small_p_is_not_zero():
    assert [p_value(p) for p in (None, 1.0, 0.0123, 0.0005, 0.00049, 0.0)] == [
        "-", "1.000", ".012", ".001", "<.001", "<.001",
    ]  # fmt: skip
