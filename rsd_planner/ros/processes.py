"""Processes that belong together: started at once, stopped together, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Processes:
    """A context in which named processes run; leaving it stops them (SIGINT, later SIGKILL)."""

    def __init__(self, environment: Mapping[str, str], log_directory: Path | None = None) -> None:
        self._environment = dict(environment)
        self._log_directory = log_directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a process in a group of its own; its output goes to the log directory if there is one."""
        if self._log_directory is None:
            process = subprocess.Popen(command, env=self._environment, start_new_session=True)
        else:
            self._log_directory.mkdir(parents=True, exist_ok=True)
            with self.log(name).open("wb") as log:
                process = subprocess.Popen(
                    command, env=self._environment, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
                )
        self.running[name] = process
        return process

    def log(self, name: str) -> Path:
        """The file that a process's output goes to."""
        assert self._log_directory is not None
        return self._log_directory / f"{name}.log"

    def ended(self) -> dict[str, int]:
        """Exit codes of the processes that have ended by themselves."""
        codes = {name: process.poll() for name, process in self.running.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def first_ended(self) -> tuple[str, int] | None:
        """Waits for a process that ends by itself, and says which with what exit code; None after SIGINT or SIGTERM.

        A KeyboardInterrupt could strike while a Popen holds its lock, and stopping it would then wait for ever.
        """
        told: list[int] = []
        before = {number: signal.signal(number, lambda got, _: told.append(got)) for number in _STOPPING}
        try:
            while not told:
                if ended := self.ended():
                    return next(iter(ended.items()))
                time.sleep(0.2)
            return None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self, patience_s: float = 15.0) -> dict[str, int]:
        """Stops all and returns their exit codes (negative: the signal that ended the process)."""
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + patience_s
        for process in self.running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return {name: process.returncode for name, process in self.running.items()}
