#!/bin/sh
# What the tests need next to Python and npm packages: a Chromium (the system's, or else playwright's own), and a C++
# compiler for the compiled pass.
set -eu
bin=$1

missing=
command -v chromium >/dev/null || missing="chromium"
command -v g++ >/dev/null || command -v clang++ >/dev/null || missing="$missing g++"
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing what the tests need on this system: $missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
    exit 0
fi
case $missing in *g++*) echo "a C++ compiler is missing: install g++ or clang" >&2; exit 1 ;; esac
"$bin/playwright" install chromium
