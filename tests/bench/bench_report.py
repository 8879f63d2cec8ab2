"""`make bench ARGS=report`: `python -m rlcorr report` on one thread: tokens per second, and memory, at two sizes.

The numbers are random in all their digits, which no compression makes small: the most that can be to read. The rate is
that of the processor's time, from the difference of the two sizes: other work on the machine and the start, which takes
seconds, are left out.
"""

import json
import tempfile
from pathlib import Path

from many_tokens import piece, reported, write

MILLIONS = (20, 120)
PRESETS = ("disabled", "decoupled_token_is", "decoupled_geo_rs_token_tis", "decoupled_seq_is_rs", "slime_mis")


def main() -> None:
    print("| preset | million tokens | row groups | seconds | million tokens per second of processor | MiB at most |")
    print("|---|---|---|---|---|---|", flush=True)
    given = piece(0, 1 << 20, levels=None)
    with tempfile.TemporaryDirectory() as folder:
        for one_row_group in (False, True):
            files = [Path(folder) / f"{millions}.parquet" for millions in MILLIONS]
            for file, millions in zip(files, MILLIONS, strict=True):
                write(file, [given] * millions, one_row_group=one_row_group)
            for preset in PRESETS:
                small, large = (reported(str(file), preset) for file in files)
                tokens = [json.loads(run.document)["rollout_corr/tokens"] for run in (small, large)]
                rate = (tokens[1] - tokens[0]) / (large.cpu_seconds - small.cpu_seconds) / 1e6
                groups = 1 if one_row_group else MILLIONS[1]
                print(
                    f"| {preset} | {tokens[1] / 1e6:.0f} | {groups} | {large.seconds:.1f} | {rate:.1f} | "
                    f"{large.mebibytes:.0f} (at {tokens[0] / 1e6:.0f} million: {small.mebibytes:.0f}) |",
                    flush=True,
                )
