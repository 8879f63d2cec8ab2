"""The server of `make app`: the page of main.py, addresses of its components, and the lessons."""

import streamlit as st
from components import offers
from controls import lesson_pages
from controls.headers import OwnPages, SafeHeaders
from controls.old_addresses import OldAddresses
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

HOSTS = st.get_option("server.allowedHosts")  # `rlcorr play` sets it; without it every name is accepted
app = st.App(
    "main.py",
    routes=[*offers.ROUTES, *lesson_pages.routes()],
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS or ["*"], www_redirect=False),
        Middleware(SafeHeaders, framed=not HOSTS),
        Middleware(OwnPages, hosts=HOSTS),
        Middleware(OldAddresses, base=st.get_option("server.baseUrlPath")),
    ],
)
