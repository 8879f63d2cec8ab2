"""The synthetic runs that all tests in a browser look at."""

from pathlib import Path

from app_runs import add_step, make_record, make_run, write_sketch
from token_records import HOSTILE, characters

SCRIPT = "<script>document.title='owned'</script> [link](javascript:alert(1)) $x^2$ `code`"
"""Every answer of the run `alpha`: a page must show it as it is."""

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
