"""An event loop on a thread, for helpers of blocking programs."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines until closed. patience_s: longest wait for anything asked of it."""

    def __init__(self, name: str, patience_s: float = 10.0) -> None:
        self._patience_s = patience_s
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(self._patience_s)

    def close(self) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(self._patience_s)
        self.loop.close()

    async def _cancel_all(self) -> None:
        """As `asyncio.run` does: what still waits for a peer ends with the loop."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
