"""The view Lab without a browser: what it gives to its component, and how it reads its address."""

from typing import Any

import pytest
from app_pages import committed, one_scan, open_app, said
from app_runs import PROJECT

from rlcorr.lab import Experiment

__all__ = ["committed", "one_scan"]  # fixtures


def changed(key: str, value: Any) -> Experiment:
    return Experiment(**{key: value})


def test_every_handle_list_and_scenario_is_a_setting_that_exists(committed: None) -> None:
    from data.options import LAB
    from views import lab

    for key, (_, values, _) in lab.HANDLES.items():
        for value in values:
            changed(key, int(value) if float(value).is_integer() else value)
    for key, (_, options) in lab.CHOICES.items():
        assert [changed(key, option) for option in options]
    assert {*lab.HANDLES, *lab.CHOICES, "seed"} == {*LAB}
    for _, changes in lab.SCENARIOS.values():
        assert {*lab.query(changes)} == {*LAB}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"lag": "-1"}, "lag must be 0 to 64; got -1. Using 16."),
        ({"lag": "1.5"}, "lag must be 0 to 64; got 1.5. Using 16."),
        ({"length": "nan"}, "length must be 1 to 8; got nan. Using 3."),
        ({"steps": "1e9"}, "Using 120."),
        ({"threshold": "0"}, "threshold must be a number from 0.01 to 1000; got 0.0. Using 2.0."),
        ({"bound": "band", "threshold": "0.5"}, "needs a threshold of at least 1; got 0.5. Using 2.0."),
        ({"optimizer": "adam"}, "Did you mean 'adamw'?"),
        ({"penalty": "k4"}, "Using none."),
    ],
)
def test_a_setting_that_cannot_be_is_named_once(committed: None, query: dict[str, str], sentence: str) -> None:
    at = open_app("views/lab.py", **query)
    assert not at.exception
    assert sentence in said(at).replace("\\", "")


def test_the_files_of_the_engine_stay_small() -> None:
    scripts = PROJECT / "app" / "components" / "js"
    lines = sum(len((scripts / f"{name}.js").read_text().splitlines()) for name in ("lab_engine", "lab_pool"))
    assert lines <= 400
