"""The table of pages: each has its file, and its title stands there alone."""

from pathlib import Path
from typing import Any

import pytest
from app_pages import open_app, root
from app_runs import PROJECT, make_run
from streamlit.testing.v1.element_tree import Block

__all__ = ["root"]  # fixture

APP = PROJECT / "app"


@pytest.fixture
def titles(root: Path) -> dict[str, str]:
    from text.pages import PAGES

    return {name: page.title for name, page in PAGES.items()}


def test_every_page_has_its_file(titles: dict[str, str]) -> None:
    """And the study has one: it is a part of Training in the app, and a page of the static site."""
    assert {path.stem for path in (APP / "views").glob("*.py")} == {*titles, "study"}


@pytest.mark.page
def test_the_pickers_have_one_place_on_every_page(root: Path, titles: dict[str, str]) -> None:
    """Where they moved, the browser had them twice for a moment, and could keep the values of the old ones."""
    make_run(root, "alpha", steps=2)
    places = {}
    for name in titles:
        children = open_app(f"views/{name}.py", run="alpha", step="1").main.children
        places[name] = [place for place, child in children.items() if _has_run_picker(child)]
    assert len({*map(tuple, places.values())}) == 1, places
    assert len(places["bench"]) == 1


def _has_run_picker(block: Any) -> bool:
    return any(box.key == "run" for box in block.get("selectbox")) if isinstance(block, Block) else False
