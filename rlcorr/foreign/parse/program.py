"""The process that parses files of other people, apart from the one that asks: it may crash, or run out of memory.

`child` starts it and sends one `Request` after the other, pickled, on the standard input. The answer on the standard
output is one Arrow table after the other; their metadata say what they are. The first has the names of all columns, the
last is the end or a refusal. Nothing here imports torch, which takes two seconds, unless the file needs it.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlcorr.errors import UsageError
from rlcorr.foreign.parse.arrays import npz_pieces
from rlcorr.foreign.parse.objects import json_pieces
from rlcorr.foreign.parse.parquet import parquet_pieces
from rlcorr.foreign.parse.request import FACTS, NO_TABLE, OUT_OF_MEMORY, Piece, Request

_MEMORY, _TIMES = 300 << 20, 10
"""Bytes that a file may take, and more in proportion to its size."""
_PARSERS = {".parquet": parquet_pieces, ".json": json_pieces, ".jsonl": json_pieces, ".npz": npz_pieces}


def parse(request: Request) -> Iterator[Piece]:
    """Return the pieces of a file. Raises `UsageError` if it is damaged."""
    limit_process()
    pieces = _PARSERS.get(request.ending)
    if pieces is None:
        from rlcorr.foreign.parse.torch_files import safetensors_pieces, torch_pieces

        pieces = safetensors_pieces if request.ending == ".safetensors" else torch_pieces
    limit_process(_MEMORY + _TIMES * request.path.stat().st_size, request.seconds)
    return pieces(request)


def limit_process(memory: int | None = None, seconds: int = 0) -> None:
    """Set limits of memory (bytes) and time (seconds of the processor) for this process from now on; None lifts them.

    Windows has no such limits, and a Mac may refuse that of the memory. The time that `child` waits is always limited.
    """
    if sys.platform == "win32":
        return
    import resource

    spent = resource.getrusage(resource.RUSAGE_SELF)
    taken = spent.ru_maxrss  # a Mac limits the resident memory
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: taken, resource.RLIMIT_CPU: int(spent.ru_utime + spent.ru_stime) + seconds}
    for (name, limit), more in zip(limits.items(), (memory, 0), strict=True):
        most = resource.getrlimit(name)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(name, (most if memory is None else limit + (more or 0), most))


def answer(request: Request) -> None:
    """Write the pieces of a file, and their end or the reason why there are no more."""
    try:
        for facts, table in parse(request):
            _write(facts, table)
        _write({"end": True}, NO_TABLE)
    except UsageError as error:
        _write({"refused": str(error)}, NO_TABLE)
    except MemoryError:  # Arrow's and numpy's are of this class
        os._exit(OUT_OF_MEMORY)


def _write(facts: dict[str, Any], table: pa.Table) -> None:
    table = table.replace_schema_metadata({FACTS: json.dumps(facts).encode()})
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)
    sys.stdout.buffer.flush()


def main() -> None:
    """Answer requests until the other process closes the pipe."""
    pa.set_io_thread_count(1)  # a thread takes 64 MiB of addresses
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer(request)
