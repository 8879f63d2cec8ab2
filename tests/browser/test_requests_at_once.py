"""What a person does counts although Streamlit throws away what an earlier run of the page has drawn."""

from pathlib import Path

import late_streamlit
from app_runs import make_run, serve
from browser_runs import a_box_a_view_and_a_switch_at_once
from playwright.sync_api import Page, expect


def test_what_is_chosen_before_the_page_has_answered_counts(page: Page, tmp_path: Path) -> None:
    """On a busy machine the second request comes when a run has ended whose messages were not handled yet. Streamlit
    throws those away, and every request draws the whole page."""
    make_run(tmp_path, "beta", steps=1)
    with serve(tmp_path, streamlit=(late_streamlit.__file__,)) as url:
        a_box_a_view_and_a_switch_at_once(page, url)
        share, kept = page.get_by_role("spinbutton", name="At least, %"), page.get_by_text("The whole correction then")
        of_95 = kept.inner_text()
        share.fill("60")
        share.press("Enter")
        expect(kept).not_to_have_text(of_95)
        for number in ("70", "80", "95"):
            share.fill(number)
            share.press("Enter")
            page.wait_for_timeout(100)  # the messages are handled 0.3 s after they were sent
        expect(kept).to_have_text(of_95)
