"""The files of the static site: what presets share, one strip per bound, and the sentences of a planned comparison."""

import re
import tomllib
from collections.abc import Iterator
from types import ModuleType

import pytest
from app_runs import PROJECT

from rlcorr import PRESETS, evaluate
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.gradients.report import compare
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.strips.packing import Package, pack

RUN = runs.ROOT / "smol_stale_6"
STEP = 24
SEVERAL = "decoupled_geo_rs_token_tis"


@pytest.fixture(scope="module")
def files() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "app")
        from static_site import view_files

        yield view_files


def test_presets_that_share_files_have_the_same_bench(files: ModuleType) -> None:
    """verl's bypass presets do to a batch what its decoupled ones do; only the losses differ."""
    like = files.shared_names(PRESETS, on_batch=True)
    assert like["bypass_pg_geo_rs_token_tis"] == SEVERAL
    assert like["bypass_ppo_clip"] == "disabled"
    assert like["decoupled_token_is"] != like["decoupled_seq_is"]
    for name in ("bypass_pg_geo_rs_token_tis", "bypass_ppo_clip"):
        one, other = (files.bench_packages(RUN, STEP, preset) for preset in (name, like[name]))
        assert {key: pack(one[key]) for key in one} == {key: pack(other[key]) for key in other}


def test_each_bound_has_a_strip_in_which_the_others_have_the_presets_numbers(files: ModuleType) -> None:
    packages: dict[str, Package] = files.bench_packages(RUN, STEP, SEVERAL)
    config, batch = PRESETS[SEVERAL].config, runs.read_step(RUN, STEP).batch
    with_values = files.all_values(config)
    assert list(packages) == ["", *[b.key for b, _ in with_values[1:]]]
    for (b, values), package in zip(with_values, packages.values(), strict=True):
        kept = package.about["numbers"]["Kept tokens"]
        for place in (0, len(values) // 2, len(values) - 1):
            report = evaluate(batch, at_threshold(config, values[place], b.id))[1]
            assert float(kept[place].strip("%<> ")) / 100 == pytest.approx(
                report["rollout_corr/kept_fraction"], abs=1e-4
            ), (b.key, place)
        # The curves are over the first bound, as in the app: another bound moves no line in them.
        assert ("shares_over" in package.about["pictures"]) == (b is with_values[0][0])


def test_a_study_is_shown_with_its_planned_comparisons_and_its_control(files: ModuleType) -> None:
    """smol_last_weights planned three comparisons, and its arm `fresh` has no old weights."""
    about = files.study_package("smol_last_weights").about
    differences = [sentence for sentence in about["sentences"] if "10 seeds" in sentence]
    assert [sentence.endswith("not planned") for sentence in differences] == [False, False, False, True]
    assert about["heading"] == (
        "Accuracy of the last weights, as planned before training: No correction is below Fresh weights; Cap each "
        "token's weight at 2 is above No correction."
    )
    (endpoint,), (reward, *_) = about["part"]["rows"][:2]
    assert endpoint["figure"]["data"][0]["text"] == ["0.56", "0.46", "0.45", "0.23"]
    assert [line["label"]["text"] for line in reward["figure"]["layout"]["shapes"]] == ["start", "no mismatch"]


def test_a_kl_loss_has_a_file_for_each_slider(files: ModuleType) -> None:
    run = runs.ROOT / "stale_4"
    packages: dict[str, Package] = files.kl_packages(run, last_sketch(run), "k2")
    assert [*packages] == ["", "kl_position"]
    part = packages[""].about["part"]
    assert part["texts"]["answer"].startswith("As a loss, k2 has the true gradient. As a value it is too large")
    assert len(packages["kl_position"].about["texts"]["answer"]) == len(part["sliders"][1]["values"]) == 17
    assert [*files.kl_packages(runs.ROOT / "smol_stale_6", None, "k3")] == [""]  # no such positions


def test_every_run_that_lessons_and_stories_show_with_a_correction_is_on_the_site(files: ModuleType) -> None:
    from publish import CORRECTED
    from views.start import STORIES

    lessons = PROJECT / "lessons"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(lessons.glob("[0-9][0-9]_*.py")))
    linked = set(re.findall(r"localhost:8501/(?:bench|compare|gradient)\?run=(\w+)", text))
    live = {row["run"] for row in tomllib.loads((lessons / "_site/live.toml").read_text(encoding="utf-8")).values()}
    assert len(linked) > 5
    assert linked | live | {story.run for story in STORIES} <= set(CORRECTED) <= set(runs.list_runs())


def test_each_bound_has_a_strip_of_the_gradient(files: ModuleType) -> None:
    """The numbers of a bound's strip, which have two digits, are the library's at the threshold of that bound."""
    run = runs.ROOT / "stale_4"
    step = last_sketch(run)
    packages: dict[str, Package] = files.gradient_packages(run, step, "decoupled_geo_rs")
    whole, lower = packages.values()
    upper_slider, lower_slider = whole.about["part"]["sliders"]
    assert list(packages) == ["", lower_slider["key"]] == ["", "seq_mean_k1_lower"]
    config, (batch, sketch) = PRESETS["decoupled_geo_rs"].config, read_gradients(run, step)
    for bound, slider, package in (
        (BoundId(0, "upper"), upper_slider, whole),
        (BoundId(0, "lower"), lower_slider, lower),
    ):
        value = slider["values"][5]
        changed = at_threshold(config, value, bound)
        (report,) = compare(batch, sketch, [changed], batch_sizes=[256]).reports
        assert float(package.about["numbers"]["Cosine"][5]) == pytest.approx(report.cosine.value, abs=5.1e-3), bound
