"""The metrics page lists what a scrape can show."""

from __future__ import annotations

from tools.metrics_table import PAGE, metrics_page


def test_the_metrics_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == metrics_page(), "run `make docs`"
