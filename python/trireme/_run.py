"""A training as a process that is followed by its events."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Optional

from ._program import Arguments, Json, TriremeError, call, error_text, find_program

_STOPPED = 75  # saved, may be resumed


class Run:
    """A training that runs. Iterating gives its events, each a dict with "event", "step", ... as in events.jsonl; the loop
    ends with the run, and raises TriremeError when the run failed. A run that stop() or Ctrl-C has ended is no failure.

    A thread takes the events as they come, whether or not somebody iterates: the program does not wait for a reader, and
    drops lines for which the pipe has no room."""

    def __init__(self, command: list[str], arguments: Arguments, output: Optional[str]) -> None:
        self.output = output
        self.command = command
        self.history: list[Json] = []
        self._arguments = arguments
        self._is_stopping = False
        self._n_given = 0
        self._has_ended = False
        self._news = threading.Condition()
        self._said: collections.deque[str] = collections.deque(maxlen=200)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, encoding="utf-8", errors="replace", bufsize=1)
        self._listeners = [threading.Thread(target=f, daemon=True) for f in (self._take_events, self._take_words)]
        for listener in self._listeners:
            listener.start()

    def _take_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                with self._news:
                    self.history.append(json.loads(line))
                    self._news.notify_all()
        self._process.wait()
        self._arguments.release()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _take_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)

    def __iter__(self) -> Iterator[Json]:
        return self.events()

    def events(self) -> Iterator[Json]:
        """Events that no loop has had yet, as they come. A loop that is left may be followed by another one."""
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._n_given < len(self.history) or self._has_ended)
                    if self._n_given == len(self.history):
                        break
                    event = self.history[self._n_given]
                    self._n_given += 1
                yield event
        except KeyboardInterrupt:  # the program has the signal too: it saves and ends
            self._is_stopping = True
            raise
        self._end()

    def _end(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        for listener in self._listeners:
            listener.join()
        self._process.stdout.close()
        self._process.stderr.close()
        code = self._process.returncode
        if code != 0 and not (code == _STOPPED and self._is_stopping):
            raise TriremeError(code, error_text("".join(self._said)))

    def wait(self) -> Json:
        """Waits for the end; returns the last event, which is "end" of a run that ended well."""
        for _ in self.events():
            pass
        return self.history[-1] if self.history else {}

    def metrics(self, event: str = "step") -> list[Json]:
        """The events of one kind so far: what pandas.DataFrame() takes."""
        with self._news:
            return [e for e in self.history if e["event"] == event]

    def stop(self) -> None:
        """Asks the run to finish its step, save and end, and returns at once; wait() returns when it has."""
        self._is_stopping = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def checkpoint(self) -> Json:
        """Asks for a checkpoint now; returns when the run has answered."""
        if self.output is None:
            raise TriremeError(2, "checkpoint: the run has no output")
        return call("ctl", self.output, "save")

    @property
    def returncode(self) -> Optional[int]:
        """None while it runs."""
        return self._process.poll()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
            try:
                self.wait()
            except TriremeError:
                pass

    def _repr_html_(self) -> str:
        """In a notebook: the loss so far as a curve."""
        steps = self.metrics()
        if len(steps) < 2:
            return f"<p>trireme: {len(steps)} steps</p>"
        low, high = min(s["loss"] for s in steps), max(s["loss"] for s in steps)
        points = " ".join(
            f"{480 * i / (len(steps) - 1):.1f},{110 - 100 * (s['loss'] - low) / ((high - low) or 1):.1f}"
            for i, s in enumerate(steps))
        return (f'<svg width="500" height="130" viewBox="-10 0 500 130"><polyline points="{points}" fill="none" '
                f'stroke="#3366cc"/><text x="0" y="127" font-size="11">step {steps[-1]["step"]}, loss '
                f'{steps[-1]["loss"]:.4f}</text></svg>')


def train(*, ranks: int = 1, **options: Any) -> Run:
    """Starts a training and returns at once. Options are those of `trireme train`; data and eval_data may also be a list
    of dicts or a dataset. ranks: processes on this machine."""
    arguments = Arguments(options)
    command = [find_program()]
    if ranks > 1:
        command += ["launch", "--nproc-per-node", str(ranks)]
    output = options.get("output")
    return Run([*command, "train", *arguments.words, "--json"], arguments, None if output is None else os.fspath(output))


def watch(output: Any, *, poll_s: float = 0.2, timeout_s: Optional[float] = None) -> Iterator[Json]:
    """Events of a run that another process started, from the first on, until it ends or timeout_s is over."""
    path = os.path.join(os.fspath(output), "events.jsonl")
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not os.path.exists(path):
        if end is not None and time.monotonic() > end:
            raise TriremeError(2, f"{path}: no run writes there")
        time.sleep(poll_s)
    with open(path, encoding="utf-8", errors="replace") as f:
        line = ""
        while True:
            line += f.readline()
            if line.endswith("\n"):
                event: Json = json.loads(line)
                line = ""
                yield event
                if event.get("event") == "end":
                    return
            elif end is not None and time.monotonic() > end:
                return
            else:
                time.sleep(poll_s)
