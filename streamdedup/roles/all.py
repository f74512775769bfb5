"""*Async.* All roles of mode split on one machine, each in a process of its own."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence


async def run_all(commands: Sequence[Sequence[str]]) -> int:
    """Run commands until one ends, or SIGTERM or SIGINT arrives, which all of them get.

    Return the first exit code that is not 0; a process that a signal ended counts as 128 and its
    number.
    """
    # In a group of their own: a terminal would send them the signal that they get from here.
    processes = [
        await asyncio.create_subprocess_exec(*command, process_group=0) for command in commands
    ]
    stopping = asyncio.Event()

    def forward(number: int) -> None:
        stopping.set()
        for process in processes:
            if process.returncode is None:
                process.send_signal(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, forward, number)

    async def end(process: Process) -> int:
        code = await process.wait()
        return 128 - code if code < 0 else code

    ends = [asyncio.create_task(end(process)) for process in processes]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.is_set():
        forward(signal.SIGTERM)
    codes = await asyncio.gather(*ends)
    return next((code for code in codes if code), 0)
