"""The server of `make app`: the pages of main.py, the addresses for dragging (controls/drag.py), and the lessons."""

import streamlit as st
from controls import drag, lesson_pages

app = st.App("main.py", routes=[*drag.ROUTES, *lesson_pages.routes()])
