"""What `make app` serves: the pages of main.py, the addresses that a dragged threshold asks, and the lessons."""

import streamlit as st
from controls import drag, lesson_pages

app = st.App("main.py", routes=[*drag.ROUTES, *lesson_pages.routes()])
