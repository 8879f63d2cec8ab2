"""The server of `make app`: the page of main.py, addresses of its components, and the lessons."""

from pathlib import Path

import streamlit as st
from components import offers
from controls import lesson_pages
from controls.middleware import completes_page, compressed, old_addresses, own_pages, safe_headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
HOSTS = st.get_option("server.allowedHosts")  # `rlcorr play` sets it; without it every name is accepted
app = st.App(
    "main.py",
    routes=[*offers.ROUTES, *lesson_pages.ROUTES],
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS or ["*"], www_redirect=False),
        Middleware(safe_headers, framed=not HOSTS),
        Middleware(own_pages, hosts=HOSTS),
        Middleware(old_addresses, base=st.get_option("server.baseUrlPath")),
        Middleware(compressed, base=st.get_option("server.baseUrlPath")),
        Middleware(completes_page, style=STYLE),
    ],
)
