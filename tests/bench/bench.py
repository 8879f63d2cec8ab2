"""`make bench`: the measured figures of the README, each from processes started as a person starts them.

    make bench                  everything, about four hours on two cores, of which the algorithms take two
    make bench ARGS="ppo play"  only these

ppo grpo rloo   addition from the warm start, bfloat16 vLLM, three seeds: minutes to 90 % greedy accuracy
float32   fifty steps with a float32 engine: the largest k3 between engine and trainer
play      a warm start of `make play`: seconds to the page, and to the first live step
app       moving a threshold on 131 k and 1 M tokens in headless Chromium: milliseconds to the repainted pictures
sessions  thirty people who move one at once: milliseconds to the answer, memory of the server
followed  a training alone, and with its page open in Chromium: what being watched costs
library   the whole correction with its metrics, beside verl's own helper: million positions per second
devices   whether a GPU gives the CPU's numbers, for every preset on recorded steps; seconds
gpu       the whole correction with its metrics on a GPU, beside verl's own helper: milliseconds; two minutes
report    log-prob pairs of 120 million tokens from Parquet, one thread: tokens per second and memory
site      the page without installation, as `make site` wrote it: seconds to its first drag, redraws, megabytes
strips    all places of a slider at once, 131 k and 1 M tokens: milliseconds, and kilobytes to send
gradients a gradient report and a sweep over thresholds: milliseconds; the sketch of a step: seconds; what the runs tell
exact     gradients over all likely answers beside those of 20,000 sampled ones, on two runs that are trained again
progress  the share of the progress beside what one step of training gains, ten presets: twenty minutes
prompts   gradients over all likely answers to 128 to 1,024 prompts, two runs trained again: five minutes
long      answers of 200 to 500 tokens: weights, bounds and the effective sample size over the length; seconds
diagnosis what triage says of every recorded step, beside its cause, with all measured gaps and with fewer; a minute
confusion what triage says of causes planted on SmolLM2, by the number of tokens; ten minutes
family    the gaps of any model (MODEL=FILE.gguf) in several number formats, and what triage says of each; half an hour
precision k3 between engine and trainer in every pair of number formats, on the warm start: six minutes
memory    running sums: growth over 500 steps, and the overhead of a step
recorder  what recording costs a training: its steps with and without, in pairs; two minutes
import    memory that a Parquet file of 1 GiB takes while it is imported; three minutes
trainer   a step beside TRL's GRPO trainer, and beside the engine and the model alone
real      a GRPO step on SmolLM2-135M, beside TRL's: completions per second and memory; ten minutes
smol_runs what became of the recorded runs of SmolLM2-135M; seconds
proof     what the proof of a sync names if one tensor stays old, or none, and its seconds; four minutes
invariance  whether the engine of SmolLM2 computes the same alone and among 64 prompts; three minutes
retokenised  answers of SmolLM2 that become other tokens if their text is encoded again; seconds
hidden    updates of SmolLM2-135M that rounding to bfloat16 hides from the engine; four minutes
smol      the gaps of SmolLM2-135M without training: number formats and old weights; half an hour
shared    forward and backward passes with and without a common prompt of the answers; nine minutes
sgd       SmolLM2-135M, a cap on the product with SGD at the step length of AdamW: half an hour
scores    the sketch of SmolLM2-135M: seconds and memory; how often intervals from sketches are right; ten minutes
router    a mixture of experts: k3 and swapped experts, with and without router replay
picture   the picture of the README
"""

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import bench_app
import bench_confusion
import bench_devices
import bench_diagnosis
import bench_exact
import bench_family
import bench_followed
import bench_gpu
import bench_gradients
import bench_hidden
import bench_import
import bench_invariance
import bench_library
import bench_long
import bench_memory
import bench_precision
import bench_progress
import bench_prompts
import bench_proof
import bench_real
import bench_recorder
import bench_report
import bench_retokenised
import bench_router
import bench_scores
import bench_sessions
import bench_sgd
import bench_shared
import bench_site
import bench_smol
import bench_strips
import bench_trainer
from app_runs import chromium, serve, settled, tab
from processes import ROOT, rlcorr, running, url_in, wait_for

from rlcorr.records import runs

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
TARGET = 0.9


def trained(folder: Path, run: str, *options: str) -> list[dict]:
    done = rlcorr("train", "--model", str(WARM_START), "--run", run, *options, runs_folder=folder, timeout=3600)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return runs.read_metrics(folder / "local" / run)


GROUPS = ("--prompts-per-step", "128", "--samples-per-prompt", "4", "--steps", "300")
"""GRPO and RLOO need several samples of a prompt."""


def learning(estimator: str, *algorithm: str) -> None:
    print("| algorithm | seed | greedy accuracy | steps | minutes | k3, smallest to largest | overhead of a step |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            options = ("--advantage.estimator", estimator, *algorithm, "--seed", str(seed))
            options += ("--stop-at-accuracy", str(TARGET), "--record-every", "1000")
            rows = trained(Path(folder), "r", *options)
            minutes = (time.perf_counter() - start) / 60
        k3 = [row["rollout_corr/k3_kl"] for row in rows]
        overhead = statistics.median(row["timing/overhead"] for row in rows)
        print(
            f"| {estimator} | {seed} | {rows[-1]['accuracy']:.0%} | {len(rows)} | {minutes:.1f} | "
            f"{min(k3):.0e} to {max(k3):.0e} | {overhead:.1%} |",
            flush=True,
        )


def float32() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = trained(Path(folder), "r", "--steps", "50", "--rollout.dtype", "float32")
    print(f"float32 engine, {len(rows)} steps: largest k3 {max(row['rollout_corr/k3_kl'] for row in rows):.1e}")


def play() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch) / "log"
        (folder / "runs").mkdir()
        for committed in (ROOT / "runs").glob("*/manifest.json"):
            (folder / "runs" / committed.parent.name).symlink_to(committed.parent)
        steps = folder / "runs" / "local" / "live"
        start = time.perf_counter()
        with running("play", "--port", "8600", "--run", "live", runs_folder=folder / "runs", log=log):
            wait_for("the address", lambda: url_in(log) is not None, log)
            with chromium() as browser, tab(browser) as page:
                page.set_default_timeout(120_000)
                while not _opens(page, str(url_in(log))):
                    time.sleep(0.1)
                page.wait_for_selector(".rl-picture .main-svg")
                print(f"warm make play: page with its pictures after {time.perf_counter() - start:.1f} s", flush=True)
            wait_for("a live step", lambda: bool(runs.list_steps(steps)), log)
            print(f"warm make play: first live step after {time.perf_counter() - start:.1f} s", flush=True)


def _opens(page, url: str) -> bool:
    from playwright.sync_api import Error

    try:
        page.goto(url)
    except Error:  # the server is not listening yet
        return False
    return True


def picture() -> None:
    with (
        serve(ROOT / "runs") as url,
        chromium() as browser,
        tab(browser, viewport={"width": 1440, "height": 860}) as page,
    ):
        page.goto(f"{url}/bench?run=kv_fp8_e5m2&preset=decoupled_token_is&is_upper=1.2")
        page.wait_for_selector("[data-picture=mask] .main-svg")
        settled(page)
        page.wait_for_timeout(1000)  # fonts
        page.screenshot(path=ROOT / "app" / "screenshot.png")
    print("wrote app/screenshot.png")


PARTS = {
    "ppo": partial(learning, "gae"),
    "grpo": partial(learning, "grpo", *GROUPS),
    "rloo": partial(learning, "rloo", *GROUPS),
    "float32": float32,
    "play": play,
    "app": bench_app.main,
    "sessions": bench_sessions.main,
    "followed": bench_followed.main,
    "library": bench_library.main,
    "devices": bench_devices.bench_devices,
    "gpu": bench_gpu.bench_gpu,
    "report": bench_report.main,
    "site": bench_site.main,
    "strips": bench_strips.main,
    "gradients": bench_gradients.main,
    "exact": bench_exact.bench_exact,
    "progress": bench_progress.bench_progress,
    "prompts": bench_prompts.bench_prompts,
    "diagnosis": bench_diagnosis.main,
    "confusion": bench_confusion.main,
    "family": bench_family.main,
    "precision": bench_precision.bench_precision,
    "long": bench_long.bench_long,
    "import": bench_import.main,
    "hidden": bench_hidden.bench_hidden,
    "invariance": bench_invariance.bench_invariance,
    "retokenised": bench_retokenised.bench_retokenised,
    "proof": bench_proof.bench_proof,
    "memory": bench_memory.main,
    "recorder": bench_recorder.main,
    "trainer": bench_trainer.main,
    "real": bench_real.bench_real,
    "smol_runs": bench_smol.bench_runs,
    "smol": bench_smol.bench_smol,
    "sgd": bench_sgd.bench_sgd,
    "shared": bench_shared.bench_shared,
    "router": bench_router.main,
    "scores": bench_scores.main,
    "picture": picture,
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}. Known: {', '.join(PARTS)}.")
    for name in names or PARTS:
        print(f"\n{name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
