"""`make site`: write the static site to build/site, as files with relative addresses, which need no other host."""

import argparse
import base64
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import streamlit.logger
from components.sources import script, style
from data import lessons, names, recorded, studies
from data.bounds import bounds_of
from data.configuration import DEFAULT_PRESET, choices_of
from data.kl_example import LOSS, LOSSES
from data.options import FIXES, LAB
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from static_site import view_files
from static_site.parts import share
from text import pages, phrases
from views import lab, start

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import packed_script
from rlcorr.presets import RANKED
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch
from rlcorr.strips.packing import SMALLEST, pack
from rlcorr.systems.export import SYSTEMS

TEMPLATES = Path(__file__).parent / "static_site"
CORRECTED = (
    "async", "bf16", "control_fp32", "gpu_smol_long", "kv_fp8_e5m2", "long_kv_fp8_e5m2",
    "smol_bf16_both", "smol_kv_fp8_e5m2", "smol_long", "smol_stale_6", "stale_4", "stale_head", "top_p",
)  # fmt: skip
"""The committed runs with a bench, gradients and a comparison: those of the stories, and those to which the lessons
link there. The other runs have only the Mismatch view, which is a tenth of the size. `--runs` names others."""
LESSONS_PLOTLY = "lessons/_static/plotly.js"
STYLES = ("site.css", "live_part.css", "picture.css", "hero.css", "lab.css")


def write_site(folder: Path, plotly: Path, slugs: Iterable[str] | None, presets: Iterable[str] | None) -> None:
    """Write the site. The folder is emptied first, except for its lessons.

    Without `slugs` the site has all committed runs, of which `CORRECTED` get every view. Without `presets` it has all
    but those that need top-k lists, which few runs have.
    """
    paths = {slug: runs.ROOT / slug for slug in slugs or runs.list_runs() if runs.list_steps(runs.ROOT / slug)}
    preset_names = list(presets or RANKED)
    corrected = {slug: path for slug, path in paths.items() if slugs or slug in CORRECTED} or paths
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != "lessons":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    labels = names.run_labels(paths)
    shown = {
        slug: _run(folder, slug, path, labels[slug], preset_names if slug in corrected else [])
        for slug, path in paths.items()
    }
    with_many_files = ("bench", "gradient", "ranking")
    share([path for view in with_many_files for path in sorted(folder.glob(f"{view}/**/*.bin"))], folder / "shared.bin")
    for name, bench in view_files.shared_names(preset_names, on_batch=True).items():
        _write(folder / "preset" / f"{name}.bin", pack(view_files.preset_package(name, bench), SMALLEST))
    run = corrected[recorded.default_run(corrected, "kl")]
    step = last_sketch(run) if runs.list_sketches(run) else None
    for loss in LOSSES:
        for key, package in view_files.kl_packages(run, step, loss).items():
            _write(folder / "kl" / f"{_file(loss, key)}.bin", pack(package, SMALLEST))
    _write(folder / "lab.json", json.dumps(lab.lab_data(LAB)).encode())
    facts = _facts(shown, corrected, preset_names, [name for name in studies.all_studies() if _study(folder, name)])
    _write(folder / "index.html", _index(facts, _write_scripts(folder, plotly)))
    if not (folder / "lessons" / "index.html").exists():
        _write(folder / "lessons" / "index.html", _page("lessons.html", lessons=lessons.lessons()))


def _facts(
    shown: dict[str, dict[str, Any]], corrected: dict[str, Path], preset_names: list[str], study_names: list[str]
) -> dict[str, Any]:
    """Return what the page needs to know from the start; `corrected` has the runs with every view."""
    first = start.PLAYED if start.PLAYED in corrected else recorded.default_run(corrected)
    path = corrected[first]
    record = recorded.step(path, runs.list_steps(path)[-1])
    title, model = start.said(record)
    packages = {fix: view_files.start_package(path, record, fix) for fix in FIXES}
    return {
        "runs": shown,
        "presets": _presets(preset_names),
        "studies": study_names,
        "run": recorded.default_run(corrected),
        "sketched": recorded.default_run(corrected, "gradient"),
        "preset": DEFAULT_PRESET if DEFAULT_PRESET in preset_names else preset_names[0],
        "first": {
            "title": title, "model": model,
            "packed": {fix: base64.b64encode(pack(one, SMALLEST)).decode() for fix, one in packages.items()},
        },
        "systems": [*SYSTEMS], "choices": [choice.key for choice in choices_of(CorrectionConfig())],
        "losses": LOSSES, "loss": LOSS,
    }  # fmt: skip


def _write_scripts(folder: Path, plotly: Path) -> str:
    """Write scripts and styles, and return the address of Plotly's script. The lessons may have written it already."""
    drawing = LESSONS_PLOTLY if (folder / LESSONS_PLOTLY).exists() else "plotly.js"
    if drawing != LESSONS_PLOTLY:
        _write(folder / drawing, packed_script(plotly))
    _write(folder / "site.js", f"(() => {{\n{script('site.js')}\n}})()\n".encode())
    of_app = Path(__file__).with_name("style.css").read_text(encoding="utf-8")  # the site's tables are those of the app
    _write(folder / "site.css", "\n".join([of_app, *map(style, STYLES)]).encode())
    _write(folder / "lesson.js", f"(() => {{\n{script('lesson.js')}\n}})()\n".encode())
    _write(folder / "lesson.css", "\n".join(map(style, STYLES[1:])).encode())
    return drawing


def _run(folder: Path, slug: str, run: Path, label: str, presets: list[str]) -> dict[str, Any]:
    """Write the files of a run, and return what the page needs to know of it from the start.

    Without presets the run has only the Mismatch view.
    """
    step = runs.list_steps(run)[-1]
    print(f"{slug}, step {step}", flush=True)
    for name in dict.fromkeys(view_files.shared_names(presets, on_batch=True).values()):
        for key, package in view_files.bench_packages(run, step, name).items():
            _write(folder / "bench" / slug / f"{_file(name, key)}.bin", pack(package))
    gradients = _gradients(folder, slug, run, presets) if presets and runs.list_sketches(run) else []
    _write(folder / "mismatch" / f"{slug}.bin", pack(view_files.mismatch_package(run, step), SMALLEST))
    said = f"{label} · step {step}: {recorded.manifest(run).story}"
    sketched = last_sketch(run) if gradients else step
    return {
        "label": label, "said": said, "step": step, "sketch": sketched, "gradients": gradients,
        "corrected": bool(presets),
    }  # fmt: skip


def _file(preset: str, bound: str) -> str:
    return f"{preset}.{bound}" if bound else preset


def _gradients(folder: Path, slug: str, run: Path, presets: list[str]) -> list[str]:
    """Write the gradients of a run, and return the names of their files: the presets that have a curve."""
    step, with_curve = last_sketch(run), []
    with_bounds = [name for name in presets if bounds_of(PRESETS[name].config)]
    for name in dict.fromkeys(view_files.shared_names(with_bounds).values()):
        try:
            for key, package in view_files.gradient_packages(run, step, name).items():
                _write(folder / "gradient" / slug / f"{_file(name, key)}.bin", pack(package))
            with_curve.append(name)
        except UsageError as error:
            print(f"  no gradient of {name}: {error}", flush=True)
    _write(folder / "ranking" / f"{slug}.bin", pack(view_files.ranking_package(run, step)))
    return with_curve


def _study(folder: Path, name: str) -> bool:
    """Write the file of a study, and return whether the study has been trained."""
    try:
        _write(folder / "study" / f"{name}.bin", pack(view_files.study_package(name), SMALLEST))
    except UsageError as error:
        print(error, flush=True)
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _presets(presets: list[str]) -> dict[str, dict[str, Any]]:
    """Return, for each preset, its label, the keys of its bounds, and the names of its files."""
    bench, gradient = view_files.shared_names(presets, on_batch=True), view_files.shared_names(presets)
    return {
        name: {
            "label": names.preset_label(name), "bounds": [b.key for b in bounds_of(PRESETS[name].config)],
            "bench": bench[name], "gradient": gradient[name],
        }
        for name in presets
    }  # fmt: skip


def _index(facts: dict[str, Any], drawing: str) -> bytes:
    """Return the page; `drawing` is the address of Plotly's script."""
    run_groups = {
        title: {slug: run for slug, run in facts["runs"].items() if run["corrected"] == corrected}
        for corrected, title in {True: "In every view", False: "Only in Mismatch"}.items()
    }
    return _page(
        "index.html", facts=facts, stories=[story for story in start.STORIES if _is_there(story, facts)],
        run_groups=run_groups, pages=pages.PAGES, study=pages.STUDY, phrases=phrases, lab=lab,
        start=start, fixes=FIXES, drawing=drawing,
        gained={fix: start.gained(fix) for fix in FIXES if start.GAINED_IN in facts["studies"]},
        study_labels={name: names.study_label(one) for name, one in studies.all_studies().items()},
    )  # fmt: skip


def _is_there(story: start.Story, facts: dict[str, Any]) -> bool:
    opened = dict(parse_qsl(story.on_site))
    if "study" in opened:
        return opened["study"] in facts["studies"]
    return opened["run"] in facts["runs"] and opened["preset"] in facts["presets"]


def _page(name: str, **values: Any) -> bytes:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(name).render(**values).encode()


if __name__ == "__main__":
    streamlit.logger.set_log_level("error")  # it warns about every cache that is used outside a session
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("plotly", type=Path, help="Plotly's script for two-dimensional axes")
    options.add_argument("--out", type=Path, default=Path("build/site"))
    options.add_argument("--runs", nargs="*", help="only these runs")
    options.add_argument("--presets", nargs="*", help="only these presets")
    arguments = options.parse_args()
    write_site(arguments.out, arguments.plotly, arguments.runs, arguments.presets)
