"""The entry point: streamlit run app/main.py."""

import gc

import pandas  # noqa: F401 - plotly looks for it, and must not find a module that another visitor's thread is still importing
import state
import streamlit as st
import torch
from components.picture import load_plotly
from controls import pickers, sharing, tours, upload_box
from data import options, queueing, recorded
from text import pages, phrases
from text.formatting import plain
from views import bench, compare, gradient, kl, lab, learn, mismatch, start, tokens, training, yours

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


# Views below the pickers. Start, Lab and Learn need no run, so they are above them.
OF_A_RUN = {
    "mismatch": mismatch, "bench": bench, "gradient": gradient, "kl": kl, "tokens": tokens, "compare": compare,
    "training": training, "yours": yours,
}  # fmt: skip

forget_imports()
state.begin()
view = state.get("view")
part = state.get("part") if view == "training" else options.TRAINING[0]
title = pages.PAGES[view].title if part == options.TRAINING[0] else part
st.set_page_config(page_title=f"{title} · rlcorr", layout="wide")
if view == "yours":
    upload_box.read_new_files()
load_plotly()
sharing.navigation()
studies = part != options.TRAINING[0]  # a study has its own runs
sharing.apply(without_pickers=view in ("start", "lab", "learn") or studies)
tours.show()
all_runs = recorded.all_runs()
shown = pickers.select(all_runs) if all_runs else None
with st.container():  # containers, so that the pickers have the same place on every page, and stay as they are
    sharing.heading(sharing.run_and_step(shown))
    for sentence in state.notices():
        st.warning(plain(sentence))
with st.container(key="above_pickers"):
    if view == "start":
        start.show(all_runs, shown)
    elif view == "lab":
        lab.show()
    elif view == "learn":
        learn.show()
    elif view == "yours":
        with st.container(key="upload"):
            upload_box.take()
if shown is None:
    st.info(phrases.NO_RUNS.format(root=plain(str(runs.ROOT))))
else:
    with st.container(key="pickers"):
        pickers.pick_all(all_runs, shown)
    with st.container():
        pickers.announce_new_runs(all_runs, shown.slug)
    if view in OF_A_RUN:
        with queueing.turn(0 if view == "training" else recorded.positions(shown)):
            OF_A_RUN[view].show(shown)
st.html("<i class='rl-end'></i>")  # components/js/first_sight.js waits for it
state.end()
