"""One table in four languages."""

import csv
import io
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fclub.experiments.report.tables import Table, Value, to_csv, to_html, to_latex, to_markdown

numbers = st.floats(-1e9, 1e9)
TABLE = Table(
    "t", "A & B_1 <i>", ("policy", "regret ε"), [("a_b & <c>", Value(1234.5, 6.7, 1)), ("d", "–")]
)


@given(st.lists(st.tuples(st.text("ab,\"'\n", min_size=1), numbers, numbers), min_size=1))
def test_csv_gives_back_exactly_the_numbers(rows: list[tuple[str, float, float]]) -> None:
    table = Table("t", "t", ("name", "x"), [(name, Value(x, s)) for name, x, s in rows])
    header, *lines = csv.reader(io.StringIO(to_csv(table), newline=""))
    assert header == ["name", "x", "x std"]
    assert [(name, float(x), float(s)) for name, x, s in lines] == rows


def test_latex_escapes_what_latex_would_read() -> None:
    text = to_latex(TABLE)
    assert r"a\_b \& <c> & 1,234.5 $\pm$ 6.7 \\" in text
    assert r"regret $\varepsilon$" in text
    assert text.count("{") == text.count("}")


def test_markdown_has_one_line_per_row() -> None:
    assert to_markdown(TABLE).splitlines()[2] == "| a_b & <c> | 1,234.5 ± 6.7 |"


def test_html_is_escaped_and_every_row_has_a_heading() -> None:
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)

    Reader().feed(to_html(TABLE))
    assert "i" not in tags
    assert "c" not in tags
    assert tags.count("tr") == 3
    assert tags.count("th") == 4
