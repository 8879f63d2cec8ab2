"""`make bench ARGS=strips`: from a batch to the packed strip of all places of a slider, on one thread."""

import statistics
import time

import torch
from app_runs import make_record

from rlcorr.bounds import BoundId, Side
from rlcorr.presets import preset
from rlcorr.strips.packing import Package, arrays_of, pack
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.strips.strip import strip

WIDTH = 1024
SIZES = {"131k": 210, "1M": 1640}
"""Sequences, whose lengths are between a quarter of the width and the whole."""
RATIO, DIVERGENCE = slider_scale(1.0001, 100.0, of_ratio=True), slider_scale(1e-7, 100.0, of_ratio=False)
BOUNDS: tuple[tuple[str, int | None, Side, tuple[float, ...]], ...] = (
    ("decoupled_token_is", None, "upper", RATIO),
    ("decoupled_token_icepop", None, "upper", tuple(place for place in RATIO if place > 0.5)),
    ("decoupled_seq_is", None, "upper", RATIO),
    ("slime_mis", None, "upper", RATIO),
    ("decoupled_geo_rs_token_tis", 0, "upper", RATIO),
    ("decoupled_k3_rs_token_tis", 0, "upper", DIVERGENCE),
)
"""A preset, whose bound moves, on which side, and its places."""


def main(repeats: int = 9) -> None:
    torch.set_num_threads(1)
    print("| tokens | preset | places | strip: median | most | packed: median | kB |")
    print("|---|---|---|---|---|---|---|")
    for sequences in SIZES.values():
        batch = make_record(0, sequences=sequences, width=WIDTH, noise=0.05).batch
        tokens = int(batch.response_mask.sum())
        for name, rule, side, places in BOUNDS:
            made, packing = [], []
            for _ in range(repeats):
                start = time.perf_counter()
                of_slider = strip(batch, preset(name), places, BoundId(rule, side))
                made.append(1000 * (time.perf_counter() - start))
                start = time.perf_counter()
                packed = pack(Package(arrays_of(of_slider), {"shapes": of_slider.weights.marks}))
                packing.append(1000 * (time.perf_counter() - start))
            print(
                f"| {tokens:,} | {name} | {len(places)} | {statistics.median(made):.0f} ms | {max(made):.0f} ms "
                f"| {statistics.median(packing):.0f} ms | {len(packed) / 1000:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
