"""Write the static site: files with relative addresses, which need no other host."""

import base64
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from components.sources import script, style
from controls.bounds import bounds_of
from data import lessons, recorded, studies
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from state.session import DEFAULT_PRESET
from text import pages, phrases
from text import published as published_text

from rlcorr import PRESETS
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import packed_script
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch
from rlcorr.strips.packing import SMALLEST, pack
from rlcorr.systems.export import SYSTEMS
from static_site import benches
from static_site.sharing import share

FOLDER = Path(__file__).parent
SHARING = ("bench", "gradient", "ranking")
"""Views with many files, which share parts."""
WORDS = ("FROM_A_FILE", "LATE", "WRONG", "NO_SKETCH", "NO_CURVE")
"""Constants of `text.published` that the script shows."""
LESSONS_PLOTLY = "lessons/_static/plotly.js"
STYLES = ("site.css", "live_part.css", "picture.css")


def write_site(
    folder: Path, plotly: Path, names: Iterable[str] | None = None, presets: Iterable[str] | None = None
) -> None:
    """Write the site.

    Args:
        folder: Where to write. The folder is emptied first, except for its lessons.
        plotly: Plotly's script.
        names: Runs; by default all committed ones.
        presets: Presets; by default all that have a bound.
    """
    recorded_runs = {slug: runs.ROOT / slug for slug in names or runs.list_runs() if runs.list_steps(runs.ROOT / slug)}
    preset_names = list(presets or benches.with_a_bound())
    _empty(folder)
    shared_names = benches.shared_names(preset_names)
    different = list(dict.fromkeys(shared_names.values()))
    shown = {slug: _run(folder, slug, path, different) for slug, path in recorded_runs.items()}
    run = recorded.default_run(recorded_runs)
    preset = DEFAULT_PRESET if DEFAULT_PRESET in preset_names else preset_names[0]
    first = (folder / "bench" / run / f"{shared_names[preset]}.bin").read_bytes()
    share([path for view in SHARING for path in sorted(folder.glob(f"{view}/**/*.bin"))], folder / "shared.bin")
    for name in preset_names:
        _write(folder / "use" / f"{name}.bin", pack(benches.exported(name), SMALLEST))
    drawing = _write_scripts(folder, plotly)
    facts = {
        "runs": shown,
        "presets": _presets(preset_names),
        "studies": [name for name in studies.all_studies() if _study(folder, name)],
        "run": run,
        "sketched": recorded.default_run(recorded_runs, sketched=True),
        "preset": preset,
        "first": base64.b64encode(first).decode(),
        "systems": [*SYSTEMS],
        "words": {name: getattr(published_text, name) for name in WORDS},
    }
    _write(folder / "index.html", _index(facts, drawing))
    if not (folder / "lessons" / "index.html").exists():
        _write(folder / "lessons" / "index.html", _page("lessons.html", lessons=lessons.lessons()))


def _write_scripts(folder: Path, plotly: Path) -> str:
    """Write scripts and styles, and return the address of Plotly's script. The lessons may have written it already."""
    drawing = LESSONS_PLOTLY if (folder / LESSONS_PLOTLY).exists() else "plotly.js"
    if drawing != LESSONS_PLOTLY:
        _write(folder / drawing, packed_script(plotly))
    _write(folder / "site.js", f"(() => {{\n{script('site.js')}\n}})()\n".encode())
    _write(folder / "site.css", "\n".join(map(style, STYLES)).encode())
    _write(folder / "lesson.js", f"(() => {{\n{script('lesson.js')}\n}})()\n".encode())
    _write(folder / "lesson.css", "\n".join(map(style, STYLES[1:])).encode())
    return drawing


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != "lessons":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _run(folder: Path, slug: str, run: Path, presets: Iterable[str]) -> dict[str, Any]:
    """Write the files of a run, and return what the page needs to know of it from the start."""
    step = runs.list_steps(run)[-1]
    print(f"{slug}, step {step}", flush=True)
    gradients = []
    sketched = last_sketch(run) if runs.list_sketches(run) else None
    for name in presets:
        _write(folder / "bench" / slug / f"{name}.bin", pack(benches.bench_package(run, step, name)))
        try:
            if sketched is not None:
                package = benches.gradient_package(run, sketched, name)
                _write(folder / "gradient" / slug / f"{name}.bin", pack(package))
                gradients.append(name)
        except UsageError as error:
            print(f"  no gradient of {name}: {error}", flush=True)
    if sketched is not None:
        _write(folder / "ranking" / f"{slug}.bin", pack(benches.ranking_package(run, sketched)))
    _write(folder / "mismatch" / f"{slug}.bin", pack(benches.mismatch_package(run, step), SMALLEST))
    story = recorded.manifest(run).story
    return {"said": published_text.RECORDED.format(slug=slug, step=step, story=story), "gradients": gradients}


def _study(folder: Path, name: str) -> bool:
    """Write the file of a study, and return whether the study has been trained."""
    try:
        _write(folder / "study" / f"{name}.bin", pack(benches.study_package(name), SMALLEST))
    except UsageError as error:
        print(error, flush=True)
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _presets(names: list[str]) -> dict[str, dict[str, str]]:
    """Return, for each preset, what the page says about it and the name of its files."""
    like = benches.shared_names(names)
    return {
        name: {"bound": bounds_of(PRESETS[name].config)[0].key, "like": like[name], "hurts": benches.hurts(name)}
        for name in names
    }


def _index(facts: dict[str, Any], drawing: str) -> bytes:
    """Return the page; `drawing` is the address of Plotly's script."""
    stories = [story for story in published_text.STORIES if story.run in facts["runs"]]
    return _page(
        "index.html", facts=facts, stories=stories, say=published_text, pages=pages.PAGES, study=pages.STUDY,
        phrases=phrases, drawing=drawing,
    )  # fmt: skip


def _page(name: str, **values: Any) -> bytes:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(name).render(**values, published=published_text).encode()
