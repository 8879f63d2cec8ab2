"""The entry point: streamlit run app/main.py."""

import gc

import pandas  # noqa: F401 - plotly looks for it, and must not find what another visitor's thread has half imported
import streamlit as st
import torch
from browser.picture import load_plotly
from controls import pickers as controls
from controls import sharing, upload_box
from data import runs as data
from remembered import session as state
from words import words

from rlcorr.records import runs

# Sessions share the cores, and these tensors are small: waiting for a second thread costs more than it saves.
torch.set_num_threads(1)


@st.cache_resource(show_spinner=False)
def forget_imports() -> None:
    """Streamlit collects garbage after every run: walking the objects of torch each time would cost 100 ms."""
    gc.collect()
    gc.freeze()


forget_imports()

st.set_page_config(page_title="rlcorr", layout="wide")
st.html(
    "<style>.block-container, .stMainBlockContainer { padding-top: 2.75rem; padding-bottom: 2rem }"
    " .stMarkdown table { display: block; width: fit-content; max-width: 100%; overflow-x: auto }</style>"
)
PAGES = [
    st.Page("views/start.py", title="Start", url_path="start", default=True),
    st.Page("views/mismatch.py", title="Mismatch", url_path="mismatch"),
    st.Page("views/bench.py", title="Correction bench", url_path="bench"),
    st.Page("views/gradient.py", title="Gradient", url_path="gradient"),
    st.Page("views/tokens.py", title="Tokens", url_path="tokens"),
    st.Page("views/compare.py", title="Compare", url_path="compare"),
    st.Page("views/training.py", title="Training", url_path="training"),
    st.Page("views/learn.py", title="Learn", url_path="learn"),
]
hidden = sharing.hidden()
page = st.navigation(PAGES, position="hidden" if "navigation" in hidden else "top")
state.set_pages({each.title: each for each in PAGES})
another_view = state.enter(page.title)
load_plotly()
sharing.apply(hidden, without_pickers=page.title == "Learn", another_view=another_view)
links = sharing.heading(page.title)
before = st.container()  # Start and Learn come before the pickers: they need no run
known = data.known()
if known:
    with st.container(key="pickers"):
        chosen = controls.pick(known)
    state.select(chosen)
    state.set_source(data.source(chosen.run, chosen.step))
    with st.container():  # what follows keeps its place, and a thumb that is held its slider
        controls.announce_new_runs(known, chosen.slug)
    with st.container(key="upload"):
        upload_box.take()
else:
    controls.watch(controls.world(known, None), None, 0.0)
    st.info(words.NO_RUNS.format(root=words.plain(str(runs.ROOT))))
sharing.links(links)
if page.title in ("Start", "Learn"):
    with before:
        page.run()
elif known:
    page.run()
