"""Pages of the app in this process, without a server: what an attack on them needs."""

import functools
import sys

from app_pages import open_app
from app_runs import PROJECT
from streamlit.components.v2 import manifest_scanner
from streamlit.logger import set_log_level

__all__ = ["open_app"]

sys.path.insert(0, str(PROJECT / "app"))
# Each page looks for components in the metadata of every installed package: longer than the page takes.
manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)
manifest_scanner.scan_component_manifests()  # processes that are forked from this one have it
set_log_level("ERROR")  # every page warns that it has no browser
