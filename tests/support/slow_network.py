"""A slow network between a browser and the app: a relay of this machine that waits."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 16_384


async def _relayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_second: float, delay: float
) -> None:
    """Write what is read, `delay` seconds later and no faster than this."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def write() -> None:
        while True:
            due, content = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()) + len(content) / bytes_per_second)
            if not content:
                break
            writer.write(content)
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        with suppress(OSError):
            while content := await reader.read(CHUNK):
                waiting.put_nowait((loop.time() + delay, content))
        waiting.put_nowait((0.0, b""))
        with suppress(OSError):
            await writing
    finally:
        writing.cancel()
        writer.close()


@contextmanager
def slow(url: str, bytes_per_second: float, delay: float) -> Iterator[str]:
    """Yield another address of this server, each of whose connections is that slow in both directions."""
    host, port = url.removeprefix("http://").split(":")
    begun = queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(host, int(port))
        both = (reader, to_server), (from_server, writer)
        with suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(*(_relayed(source, target, bytes_per_second, delay) for source, target in both))

    async def listen() -> None:
        server, ended = await asyncio.start_server(connected, "127.0.0.1", 0), asyncio.Event()
        begun.put((asyncio.get_running_loop(), ended, server.sockets[0].getsockname()[1]))
        await ended.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(listen(),))  # Playwright's loop has the main thread
    thread.start()
    loop, ended, own_port = begun.get()
    try:
        yield f"http://127.0.0.1:{own_port}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
