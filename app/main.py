"""The entry point: streamlit run app/main.py."""

import gc

import pandas  # noqa: F401 - plotly looks for it, and must not find a module that another visitor's thread is still importing
import streamlit as st
import torch
from components.blank_page import reload_when_blank
from components.history_entries import one_per_view
from components.menu import close_when_chosen
from components.picture import load_plotly
from controls import sharing, tours, upload_box
from controls.pickers import announce_new_runs, page_inputs, pick, watch
from data import recorded
from state import address, fields, navigation, session
from text import pages, phrases
from text import training as training_text
from text.formatting import plain

from rlcorr.records import runs

# Sessions share the cores, and these tensors are small. Waiting for a second thread would cost more than it saves.
torch.set_num_threads(1)


@st.cache_resource(show_spinner=False)
def forget_imports() -> None:
    """Exclude the imported modules from garbage collection.

    Streamlit collects garbage after every run. Walking the objects of torch each time would cost 100 ms.
    """
    gc.collect()
    gc.freeze()


forget_imports()

st.set_page_config(page_title="rlcorr", layout="wide")
st.html(
    "<style>.block-container, .stMainBlockContainer { padding-top: 2.75rem; padding-bottom: 2rem }"
    " [data-testid='stPageLink'] p { text-decoration: underline; text-underline-offset: 3px }"
    " [data-testid*='NavLink']:focus-visible { outline: 2px solid #3a7ca5; outline-offset: -2px; border-radius: 6px }"
    " .stMarkdown [data-testid='stCaptionContainer'] { color: inherit; opacity: 0.8 }"
    " button[data-variant][data-selected='true'] p { color: CanvasText }"
    " .st-key-menu, .st-key-blank_page, .st-key-history_entries { display: none }"
    " .stMarkdown table { display: block; width: fit-content; max-width: 100%; overflow-x: auto }</style>"
)
PAGES = {
    name: st.Page(f"views/{name}.py", title=page.title, url_path=name, default=name == "start")
    for name, page in pages.PAGES.items()
}
BEFORE_THE_PICKERS = ("start", "learn")  # these pages need no run, so the pickers are below them
page = st.navigation([*PAGES.values()], position="hidden" if sharing.hides_navigation() else "top")
name = next(name for name, other in PAGES.items() if other is page)
navigation.set_pages(PAGES)
if address.begin(name):
    fields.show_second(False)
hidden = sharing.hidden()
# Everything above the pickers has the same place on each page. If they moved, the browser would have them twice for a
# moment, and could send the values of the old ones from then on.
load_plotly()
one_per_view()
close_when_chosen()
reload_when_blank()
part = address.peek("part", training_text.PARTS[0], str)
needs_no_run = name == "learn" or (name == "training" and part != training_text.PARTS[0])  # a study has its own runs
with st.container():
    sharing.apply(hidden, without_pickers=needs_no_run)
tours.begin()
tour = st.container(key=tours.PLACE)
links = sharing.heading(name)
before = st.container()
if name == "yours":
    with before, st.container(key="upload"):
        upload_box.take()
all_runs = recorded.all_runs()
if all_runs:
    with st.container(key="pickers"):
        selection = pick(all_runs, name)
    session.select(selection)
    session.set_source(recorded.source(selection.run, selection.step))
    with st.container():  # so that elements below keep their position, and a held thumb keeps its slider
        announce_new_runs(all_runs, selection.slug)
else:
    watch(page_inputs(all_runs, None), None, 0.0)
    st.info(phrases.NO_RUNS.format(root=plain(str(runs.ROOT))))
sharing.links(links)
if name in BEFORE_THE_PICKERS:
    with before:
        page.run()
elif all_runs:
    page.run()
session.remember_pickers()
tours.show(tour, name)
address.flush()
