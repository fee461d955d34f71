"""Numbers and tables as text."""

from __future__ import annotations

from kbtrain.report.tables import escape_markdown
from kbtrain.show import aligned, number, p_value, signed


def test_numbers_lose_the_leading_zero_and_the_sign_of_zero() -> None:
    assert [number(v) for v in (0.5, 1.0, -0.25, -0.0001, None)] == [".500", "1.000", "-.250", ".000", "-"]
    assert [signed(v) for v in (0.5, -0.25, 0.0, -0.0001)] == ["+.500", "-.250", "+.000", "+.000"]


def test_columns_are_aligned() -> None:
    assert aligned(("a", "bb"), [("ccc", "1"), ("d", "22")]) == "a    bb\nccc   1\nd    22"


def test_columns_are_aligned_where_chinese_stands_in_them() -> None:
    assert aligned(("a", "bb"), [("医学", "1"), ("d", "选Ａ")]) == "a       bb\n医学     1\nd     选Ａ"


def test_markdown_is_escaped_but_words_stay_readable() -> None:
    assert escape_markdown("kbm_benefit _x_ *y* | <b>\n# z") == "kbm_benefit \\_x\\_ \\*y\\* \\| &lt;b&gt;<br>\\# z"


def test_a_small_p_is_not_zero() -> None:
    assert [p_value(p) for p in (None, 1.0, 0.0123, 0.0005, 0.00049, 0.0)] == [
        "-",
        "1.000",
        ".012",
        ".001",
        "<.001",
        "<.001",
    ]
