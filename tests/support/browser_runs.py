"""The synthetic runs that all tests in a browser look at, and the files that they drop."""

import json
from pathlib import Path

from app_runs import add_step, make_record, make_run, settled, visit, write_sketch
from playwright.sync_api import Page, expect
from token_records import HOSTILE, characters

SCRIPT = "<script>document.title='owned'</script> [link](javascript:alert(1)) $x^2$ `code`"
"""Every answer of the run `alpha`: a page must show it as it is."""

BOX = '[data-testid="stFileUploader"] input'
"""The box for files of one's own."""

TEXTS = ["1,12,123", "9,99", "<b>7</b>", "5"]
"""The answers of the run `texts`, in the order of their recording, of 9, 5, 9 and 2 tokens with the end."""


def make_runs(folder: Path) -> None:
    """Make all runs; `smol_kv_fp8_e5m2` is the one that the app shows first."""
    for slug in ("bf16", "smol_kv_fp8_e5m2", "smol_bf16_both", "stale_4"):
        make_run(folder, slug, steps=2, sequences=32, width=24)
    make_run(folder, "alpha", steps=2, sequences=32, width=24, texts=[SCRIPT])
    make_run(folder, "beta", steps=3, noise=0.02)
    make_run(folder, "gamma", steps=3)
    write_sketch(make_run(folder, "sketched", steps=1, sequences=32, width=24))
    curves = make_run(folder, "curves", steps=0, status="running")
    for step in (10, 20, 30):
        add_step(curves, make_record(step))
    prompts = [HOSTILE, "4+5=", "", "2+3="]
    add_step(make_run(folder, "texts", steps=0, status="running"), characters(TEXTS, prompts))
    make_run(folder, "long", steps=1, sequences=45, width=160)


def pairs(answers: int = 40, width: int = 30) -> bytes:
    """Return answers whose log-ratios are ±0.02 in turns: k3 is cosh(0.02) − 1 = 0.0002, as bfloat16 makes it."""
    rows = []
    for answer in range(answers):
        rollout = [-0.1 - 0.03 * ((7 * answer + 3 * token) % 50) for token in range(width)]
        old = [q + 0.02 * (1 - 2 * ((answer + token) % 2)) for token, q in enumerate(rollout)]
        rows.append(json.dumps({"old_log_probs": old, "rollout_log_probs": rollout}))
    return "\n".join(rows).encode()


def drop(page: Page, name: str, content: bytes) -> None:
    """Drop a file into the box."""
    page.set_input_files(BOX, [{"name": name, "mimeType": "application/octet-stream", "buffer": content}])


def a_box_a_view_and_a_switch_at_once(page: Page, url: str) -> None:
    """Press three things of the bench, each before the browser has heard of the one before, and go back."""
    visit(page, f"{url}/?view=bench&run=beta")
    page.locator(".st-key-use_it summary").click()
    page.get_by_role("link", name="Mismatch", exact=True).first.click()
    page.locator(".st-key-projector label").click()
    page.wait_for_url(lambda now: "view=mismatch" in now and "projector=1" in now)
    settled(page)
    expect(page.get_by_text("What is wrong with my run?")).to_be_visible()
    page.go_back()
    if "view=mismatch" in page.url:  # one entry if the second press reached the server before the first had ended
        page.go_back()
    page.wait_for_url(f"{url}/?view=bench&run=beta")
    expect(page.get_by_text("Cost of the threshold")).to_be_visible()
