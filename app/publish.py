"""`make site`: the page that needs no installation, written to build/site."""

import argparse
from pathlib import Path

import streamlit.logger
from static_site.site import write_site

if __name__ == "__main__":
    streamlit.logger.set_log_level("error")  # it warns whenever something is cached outside a session
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("plotly", type=Path, help="plotly's script for axes of two dimensions")
    options.add_argument("--out", type=Path, default=Path("build/site"))
    options.add_argument("--runs", nargs="*", help="only these")
    options.add_argument("--presets", nargs="*", help="only these")
    given = options.parse_args()
    write_site(given.out, given.plotly, given.runs, given.presets)
