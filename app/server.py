"""What `make app` serves: the pages of main.py, and the address that a dragged threshold asks."""

import drag
import streamlit as st

app = st.App("main.py", routes=[drag.ROUTE])
