#!/bin/sh
# Look for known vulnerabilities in everything that requirements/ pins, and fail if there is one. Needs `pip-audit`, which
# audit.txt pins, and `npm`. Installs nothing. Run every week by .github/workflows/audit.yml, never by setup.
set -eu
cd "$(dirname "$0")"

status=0
folder=$(mktemp -d)
for file in *.txt peers/*.txt; do
    echo "$file:"
    # Advisories are about releases, not about builds of them: torch 2.13.0+cpu is looked up as 2.13.0.
    sed 's/+cpu//; /^-r /d' "$file" > "$folder/pins.txt"
    pip-audit --requirement "$folder/pins.txt" --require-hashes --disable-pip --strict --progress-spinner off || status=1
done
rm -r "$folder"

npm audit --prefix npm --package-lock-only || status=1
exit $status
