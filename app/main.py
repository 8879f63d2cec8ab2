"""The entry point: streamlit run app/main.py."""

import gc

import controls
import data
import state
import streamlit as st
import torch
import uploads
import words
from views.picture import load_plotly

from rlcorr import runs

# Sessions share the cores, and these tensors are small: waiting for a second thread costs more than it saves.
torch.set_num_threads(1)


@st.cache_resource(show_spinner=False)
def forget_imports() -> None:
    """Streamlit collects garbage after every run: walking the objects of torch each time would cost 100 ms."""
    gc.collect()
    gc.freeze()


forget_imports()

st.set_page_config(page_title="rlcorr", layout="wide")
st.html("<style>.block-container, .stMainBlockContainer { padding-top: 2.75rem; padding-bottom: 2rem }</style>")
page = st.navigation(
    [
        st.Page("views/training.py", title="Training", url_path="training", default=True),
        st.Page("views/mismatch.py", title="Mismatch", url_path="mismatch"),
        st.Page("views/bench.py", title="Correction bench", url_path="bench"),
        st.Page("views/gradient.py", title="Gradient", url_path="gradient"),
        st.Page("views/tokens.py", title="Tokens", url_path="tokens"),
        st.Page("views/compare.py", title="Compare", url_path="compare"),
    ],
    position="top",
)

state.enter(page.title)
load_plotly()
known = data.known()
if known:
    st.markdown(f"#### {page.title}\n{words.LOOK[page.title]}")
    chosen = controls.pick(known)
    state.select(chosen)
    controls.announce_new_runs(known, chosen.slug)
    uploads.take()
    page.run()
else:
    controls.watch(controls.world(known, None), None)
    st.info(words.NO_RUNS.format(root=words.plain(str(runs.ROOT))))
