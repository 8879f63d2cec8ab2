"""The server of `make app`: the page of main.py, addresses of its components, and the lessons."""

import streamlit as st
from components import offers
from controls import lesson_pages
from controls.middleware import old_addresses, own_pages, safe_headers, says_no_connection
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

HOSTS = st.get_option("server.allowedHosts")  # `rlcorr play` sets it; without it every name is accepted
app = st.App(
    "main.py",
    routes=[*offers.ROUTES, *lesson_pages.ROUTES],
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS or ["*"], www_redirect=False),
        Middleware(safe_headers, framed=not HOSTS),
        Middleware(own_pages, hosts=HOSTS),
        Middleware(old_addresses, base=st.get_option("server.baseUrlPath")),
        Middleware(says_no_connection),
    ],
)
