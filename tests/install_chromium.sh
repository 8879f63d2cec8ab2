#!/bin/sh
# The browser tests need a Chromium: the system's, or else playwright's own.
set -eu
bin=$1
command -v chromium >/dev/null && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
else
    "$bin/playwright" install chromium
fi
