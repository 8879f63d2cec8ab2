"""`make site`: write the static site to build/site."""

import argparse
from pathlib import Path

import streamlit.logger
from static_site.site import write_site

if __name__ == "__main__":
    streamlit.logger.set_log_level("error")  # it warns about every cache that is used outside a session
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("plotly", type=Path, help="Plotly's script for two-dimensional axes")
    options.add_argument("--out", type=Path, default=Path("build/site"))
    options.add_argument("--runs", nargs="*", help="only these runs")
    options.add_argument("--presets", nargs="*", help="only these presets")
    arguments = options.parse_args()
    write_site(arguments.out, arguments.plotly, arguments.runs, arguments.presets)
