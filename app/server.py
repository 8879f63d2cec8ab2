"""The server of `make app`: the page of main.py, and addresses of its components."""

import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import streamlit as st
from components import offers
from controls.middleware import completes_page, limited_uploads, old_addresses, own_pages, safe_headers
from data import uploads
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rlcorr.foreign.import_run import return_large_blocks

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
HOSTS = st.get_option("server.allowedHosts")  # `rlcorr play` sets it; without it every name is accepted
MOST_FILES = 1 << 16
"""Descriptors. A session takes four, and macOS gives a process 256 unless it asks for more."""

LARGE_BLOCK = 4 << 20
"""Bytes. The columns of a step that waits for its turn (`data.queueing`) are larger: they go when its page is drawn."""


@asynccontextmanager
async def while_serving(_: st.App) -> AsyncIterator[None]:
    """Prepare this process, and delete what visitors have dropped when it ends, however it is asked to end."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, MOST_FILES) if most > 0 else MOST_FILES, most))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup does
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return_large_blocks(LARGE_BLOCK)
    uploads.folder()  # also deletes what a killed server has left
    yield
    uploads.folder().cleanup()


app = st.App(
    "main.py",
    lifespan=while_serving,
    routes=offers.ROUTES,
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS or ["*"], www_redirect=False),
        Middleware(safe_headers, framed=not HOSTS),
        Middleware(own_pages, hosts=HOSTS),
        Middleware(limited_uploads),
        Middleware(old_addresses, base=st.get_option("server.baseUrlPath")),
        Middleware(GZipMiddleware, compresslevel=6),  # Streamlit sends its scripts, 3 MB, as they are
        Middleware(completes_page, style=STYLE),
    ],
)
