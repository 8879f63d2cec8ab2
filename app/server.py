"""What `make app` serves: the pages of main.py, the address that a dragged threshold asks, and the lessons."""

import streamlit as st
from controls import drag, lesson_pages

app = st.App("main.py", routes=[drag.ROUTE, *lesson_pages.routes()])
