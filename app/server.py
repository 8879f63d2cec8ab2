"""The server of `make app`: the pages of main.py, the addresses for dragging (controls/drag.py), and the lessons."""

import streamlit as st
from controls import drag, lesson_pages
from controls.complete_address import CompleteAddresses
from controls.headers import SafeHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from state import ended_runs
from streamlit import net_util

# Streamlit asks an outside address for the IP of this machine when a page of another site connects. Nothing here may.
net_util.get_external_ip = lambda: None
ended_runs.deliver_messages()

HOSTS = st.get_option("server.allowedHosts")  # `rlcorr play` sets it; without it every name is accepted
app = st.App(
    "main.py",
    routes=[*drag.ROUTES, *lesson_pages.routes()],
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS or ["*"], www_redirect=False),
        Middleware(SafeHeaders, framed=not HOSTS),
        Middleware(CompleteAddresses, base=st.get_option("server.baseUrlPath")),
    ],
)
