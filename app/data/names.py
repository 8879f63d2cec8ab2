"""Names of runs, presets and arms of studies for people; slugs follow, because links and commands use these."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from data import recorded, uploads
from data.caching import cached
from data.configuration import Values, bound_values, bounds, configuration, preset_of
from rlcorr import PRESETS
from rlcorr.errors import UsageError
from rlcorr.presets.titles import title
from rlcorr.records import runs
from rlcorr.records.recipes import read_entries
from rlcorr.records.study import Study

BETWEEN = " · "


def run_labels(slugs: Iterable[str]) -> dict[str, str]:
    """Return slug → title and slug of a committed run, file name of an upload, or slug of another run."""
    titles = _titles(runs.ROOT / "index.toml")
    return {slug: f"{titles[slug]}{BETWEEN}{slug}" if slug in titles else uploads.shown_name(slug) for slug in slugs}


def run_title(slug: str) -> str:
    """Return the title of a committed run, the file name of an upload, or the slug of another run."""
    return run_labels([slug])[slug].removesuffix(f"{BETWEEN}{slug}")


def preset_title(name: str) -> str:
    return title(PRESETS[name])


def shown_title(values: Values, slot: str) -> str:
    """Return what the shown configuration does, in words. If it is not its preset any more, it has another name."""
    preset = PRESETS[preset_of(values, slot)]
    try:
        config, present = configuration(values, slot), bound_values(values, slot)
    except UsageError:  # the choices contradict each other, and the page shows the preset
        return title(preset)
    name = title(replace(preset, config=config))
    moved = [
        f"{b.label.removeprefix('B: ').split(' (')[0].lower()} {present[b.key]:g}"
        for b in bounds(values, slot)
        if present[b.key] != b.value and b.id.rule_index is not None
    ]
    if not moved and config != preset.config and name == title(preset):
        return f"{name} (changed)"
    return f"{name} ({', '.join(moved)})" if moved else name


def preset_label(name: str) -> str:
    """Return the title of a preset, its system and its slug."""
    preset = PRESETS[name]
    return BETWEEN.join((title(preset), preset.system, name))


def study_label(study: Study) -> str:
    """Return the title of a study and its slug."""
    return BETWEEN.join(dict.fromkeys((study.title, study.name)))


def arm_title(study: Study, arm: str) -> str:
    """Return what an arm of a study does, in words."""
    return study.arm_titles.get(arm) or (title(PRESETS[arm]) if arm in PRESETS else arm)


def arm_label(study: Study, arm: str) -> str:
    """Return what an arm of a study does, and its slug."""
    return BETWEEN.join(dict.fromkeys((arm_title(study, arm), arm)))


@cached(4, lambda index: (index, recorded.stamp(index)))
def _titles(index: Path) -> dict[str, str]:
    try:
        entries = read_entries(index)[1]
    except UsageError:  # missing or damaged: slugs are enough for the pages
        return {}
    return {slug: entry["title"] for slug, entry in entries.items() if "title" in entry}
