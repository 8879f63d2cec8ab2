"""What `make app` serves: the pages of main.py, and the addresses that a dragged threshold asks."""

import streamlit as st
from controls import drag

app = st.App("main.py", routes=drag.ROUTES)
