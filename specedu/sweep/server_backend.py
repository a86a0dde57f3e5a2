"""Servers that speak OpenAI's protocol: vLLM, SGLang, llama.cpp, and others.

As many threads as there are requests at once each send one, read its stream, and send the next.
The speed is that of the requests behind their first tokens, times how many run at once. What was
accepted comes from the metrics page before and after, or from llama.cpp's ``timings`` in the
answers; where neither is there the record says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from specedu.advise import page

from .backends import BackendError, texts_of, this_machine
from .grid import Backend, Cell, Server
from .samples import Acceptance, Sample

WARM = 4  # tokens of the requests that come before
NO_FILTERS = {  # where a server or the model's own settings would filter: the law is to be the same
    "vllm": {"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    "sglang": {"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    "llama.cpp": {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    "other": {"top_p": 1.0},
}
LAST_LINES = 3  # of a server's log, in the reason why it failed
PATIENCE = 10.0  # seconds for what a server answers at once: models, version, metrics


@dataclass
class Answer:
    """One request's answer.

    Attributes:
        sent: when it was sent, in seconds of the process' clock.
        first: when its first token came.
        last: when its last token came.
        tokens: as the server counts them; chunks where it does not count.
        counted: whether the server counted.
        timings: llama.cpp's.
    """

    sent: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    counted: bool = False
    timings: Mapping[str, Any] = field(default_factory=dict)


class ServerBackend:
    """Servers that run already, or are started one after the other.

    Args:
        backend: its settings, with a server for each method.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.process: tuple[tuple, subprocess.Popen, Any] | None = None
        self.broken: dict[tuple, str] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def open(self, cell: Cell) -> None:
        """Start the cell's server where that is asked for, and see that it serves the model."""
        key = cell.method, cell.kappa, cell.model
        if key in self.broken:
            raise BackendError(self.broken[key])
        server = self._server(cell)
        try:
            if server.command and not self._runs(key):
                self._start(key, server)
            self._check_model(server, cell.model)
        except BackendError as error:
            self.broken[key] = str(error)  # every cell of it fails alike, and at once
            raise

    def run(self, cell: Cell) -> list[Sample]:
        """Measure a cell; a short round runs before, which fills the server's prefix cache too."""
        server = self._server(cell)
        self._round(server, cell, texts_of(cell), 0, WARM)
        return [self._sample(server, cell, repeat) for repeat in range(cell.repeats)]

    def describe(self, cell: Cell) -> dict[str, Any]:
        """Return what a server tells of itself, and the device that the grid names."""
        server = self._server(cell)
        if server.url not in self.versions:
            self.versions[server.url] = versions(server.url)
        local = urlsplit(server.url).hostname in ("localhost", "127.0.0.1", "::1")
        named = {"device": self.backend.device} if self.backend.device else None
        unknown = {"device": "not known: another machine's; give `device:` in the grid"}
        return {
            "device": named or (this_machine() if local else unknown),
            "versions": {"engine": self.backend.engine, **self.versions[server.url]},
            "model_hash": "not told by the server",
        }

    def close(self) -> None:
        """End the server that was started here."""
        if self.process is None:
            return
        _, process, log = self.process
        self.process = None
        end(process)
        log.close()

    # --- servers ----------------------------------------------------------------------------------

    def _server(self, cell: Cell) -> Server:
        server = self.backend.servers[cell.method]
        url = server.url.replace("{kappa}", str(cell.kappa))
        filled = {"{kappa}": str(cell.kappa), "{model}": cell.model,
                  "{port}": str(urlsplit(url).port or 80)}  # fmt: skip
        command, metrics = server.command, server.metrics
        for word, value in filled.items():
            command = command and command.replace(word, value)
            metrics = metrics and metrics.replace(word, value)
        return Server(url, command, metrics)

    def _runs(self, key: tuple) -> bool:
        return (
            self.process is not None and self.process[0] == key and self.process[1].poll() is None
        )

    def _start(self, key: tuple, server: Server) -> None:
        self.close()  # two servers need not fit on one device
        if answers_at(server.url):
            raise BackendError(f"url: {server.url} answers already, expected a free port")
        log = tempfile.TemporaryFile("w+")
        try:
            process = subprocess.Popen(
                shlex.split(server.command), stdout=log, stderr=log, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise BackendError(f"command: {server.command!r} cannot be run: {error}") from error
        self.process = key, process, log
        until = time.monotonic() + self.backend.start_timeout
        while time.monotonic() < until:
            if process.poll() is not None:
                log.seek(0)
                said = [line for line in log.read().splitlines() if line.strip()]
                last = " / ".join(said[-LAST_LINES:])[-400:] or "it said nothing"
                self.close()
                raise BackendError(f"server ended with status {process.returncode}: {last}")
            try:
                models_of(server.url, 2.0)
                return
            except BackendError:
                time.sleep(0.2)
        self.close()
        raise BackendError(
            f"start_timeout: no answer at {server.url} within {self.backend.start_timeout:g} s"
        )

    def _check_model(self, server: Server, model: str) -> None:
        served = models_of(server.url)
        if model not in served:
            names = ", ".join(map(repr, served)) or "none"
            raise BackendError(f"model: {model!r}, expected what {server.url} serves: {names}")

    # --- requests ---------------------------------------------------------------------------------

    def _sample(self, server: Server, cell: Cell, repeat: int) -> Sample:
        notes: list[str] = []
        before = None if cell.plain else self._page(server, notes)
        start = time.perf_counter()
        answers = self._round(server, cell, texts_of(cell), repeat, cell.tokens + 1)
        seconds = time.perf_counter() - start
        short = sum(answer.tokens < cell.tokens + 1 for answer in answers)
        if short:
            notes.append(f"{short} of {len(answers)} answers ended before {cell.tokens + 1} tokens")
        if not all(answer.counted for answer in answers):
            notes.append("the server does not count tokens: each chunk counts as one")
        behind = sum(answer.tokens - 1 for answer in answers)
        spent = sum(answer.last - answer.first for answer in answers)
        if behind <= 0 or spent <= 0:
            raise BackendError(f"{server.url} gave no token behind the first")
        accepted = None
        if not cell.plain:
            accepted = of_timings(answers)
            if accepted is not None and not accepted.kappa:
                notes.append("no draft was made: the server's timings have none")
            if accepted is None and self.backend.engine == "llama.cpp":
                notes.append("acceptance is not known: the answers have no timings")
            if accepted is None and before is not None:
                accepted = self._accepted(server, cell, before, behind, notes)
        return Sample(
            rate=cell.concurrency * behind / spent,
            tokens=sum(answer.tokens for answer in answers),
            seconds=seconds,
            first=median(answer.first - answer.sent for answer in answers),
            step=spent / behind if cell.plain else None,
            acceptance=accepted,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _round(
        self, server: Server, cell: Cell, texts: Sequence[str], seed: int, tokens: int
    ) -> list[Answer]:
        """Send every text, so many at once, and return the answers."""
        stop = threading.Event()

        def ask(numbered: tuple[int, str]) -> Answer | None:
            if stop.is_set():
                return None
            try:
                own = seed * 100_003 + numbered[0]
                return self._ask(server, cell, numbered[1], own, tokens)
            except BackendError:
                stop.set()
                raise

        with ThreadPoolExecutor(cell.concurrency) as pool:
            return [answer for answer in pool.map(ask, enumerate(texts)) if answer is not None]

    def _ask(self, server: Server, cell: Cell, text: str, seed: int, tokens: int) -> Answer:
        asked: dict[str, Any] = {
            "model": cell.model,
            "max_tokens": tokens,
            "temperature": cell.temperature,
            **NO_FILTERS[self.backend.engine],
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            **self.backend.extra,
        }
        if self.backend.chat:
            asked["messages"], path = [{"role": "user", "content": text}], "/v1/chat/completions"
        else:
            asked["prompt"], path = text, "/v1/completions"
        answer = Answer(time.perf_counter())
        chunks = 0
        for event in events(server.url + path, asked, self.backend.timeout):
            if "error" in event:
                raise BackendError(f"{server.url}: {short_of(event['error'])}")
            if any(said(choice) for choice in event.get("choices") or ()):
                answer.last = time.perf_counter()
                answer.first = answer.first or answer.last
                chunks += 1
            if usage := event.get("usage"):
                answer.tokens, answer.counted = usage.get("completion_tokens", 0), True
            if timings := event.get("timings"):
                answer.timings = timings
        if not answer.counted:
            answer.tokens = answer.timings.get("predicted_n", chunks)
            answer.counted = "predicted_n" in answer.timings
        if not chunks:
            raise BackendError(f"{server.url} answered without a token")
        return answer

    # --- what was accepted ------------------------------------------------------------------------

    def _page(self, server: Server, notes: list[str]) -> page.Page | None:
        if self.backend.engine == "llama.cpp":
            return None  # its answers carry the counts
        try:
            return page.read(page.fetch(server.metrics or server.url + "/metrics", PATIENCE))
        except page.PageError as error:
            notes.append(f"acceptance is not known: {error}")
            return None

    def _accepted(
        self, server: Server, cell: Cell, before: page.Page, behind: int, notes: list[str]
    ) -> Acceptance | None:
        after = self._page(server, notes)
        if after is None:
            return None
        try:
            seen = page.between(before, after)
            reading = page.interpret(seen, cell.kappa)
        except page.PageError as error:
            notes.append(f"acceptance is not known: {error}")
            return None
        notes += reading.notes
        if seen.engine == page.SGLANG:
            return Acceptance(reading.tokens[0], reading.kappa)
        drafts, drafted, accepted = (seen.counts[name] for name in page.COUNTERS)
        # Every step gives one token besides its accepted drafts; steps without drafts have no
        # verify on the page. Where the page has more verifies, the last ones were cut by the limit.
        steps = max(behind - accepted, drafts)
        if drafts > 1.5 * max(1.0, behind - accepted):
            notes.append(
                "more verifies on the page than these requests had: others used the server"
            )
        rates = tuple(n / steps for n in seen.accepted_per_pos)
        return Acceptance(1 + accepted / steps, drafted / steps, rates, steps)


def of_timings(answers: Sequence[Answer]) -> Acceptance | None:
    """Return what llama.cpp's timings say of the drafts; None where there are no timings.

    They leave the drafts out of answers that had none.
    """
    if not all("predicted_n" in answer.timings for answer in answers):
        return None
    drafted = sum(answer.timings.get("draft_n", 0) for answer in answers)
    accepted = sum(answer.timings.get("draft_n_accepted", 0) for answer in answers)
    steps = max(1, sum(answer.tokens - 1 for answer in answers) - accepted)
    return Acceptance(1 + accepted / steps, drafted / steps, (), steps)


# --- the protocol ---------------------------------------------------------------------------------


def events(url: str, asked: Mapping[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed answer.

    Raises:
        BackendError: there is no answer, it is refused, it breaks off, or it is silent too long.
    """
    request = urllib.request.Request(
        url, json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as stream:
            for line in stream:
                words = line.decode("utf-8", "replace").strip()
                if not words.startswith("data:"):
                    continue
                words = words.removeprefix("data:").strip()
                if words == "[DONE]":
                    return
                yield json.loads(words)
    except urllib.error.HTTPError as error:
        raise BackendError(f"{url}: status {error.code}: {short_of(body_of(error))}") from error
    except TimeoutError as error:
        raise BackendError(f"timeout: {url} was silent for {timeout:g} s") from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise BackendError(f"timeout: {url} was silent for {timeout:g} s") from error
        raise BackendError(f"{url} does not answer: {reason}") from error


def models_of(url: str, timeout: float = PATIENCE) -> list[str]:
    """Return the models that a server has.

    Raises:
        BackendError: it cannot be reached, or says something else.
    """
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=timeout) as answer:
            return [str(model["id"]) for model in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        raise BackendError(f"{url}/v1/models: status {error.code}") from error
    except (OSError, HTTPException) as error:
        raise BackendError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{url}/v1/models is not OpenAI's list of models: {error!r}") from error


def answers_at(url: str) -> bool:
    """Return whether a server with a list of models is there."""
    try:
        models_of(url, 2.0)
    except BackendError:
        return False
    return True


def versions(url: str) -> dict[str, str]:
    """Return the version that a server tells of, at vLLM's, SGLang's or llama.cpp's address."""
    for path, name in (
        ("/version", "version"),
        ("/get_server_info", "version"),
        ("/props", "build_info"),
    ):
        try:
            with urllib.request.urlopen(url + path, timeout=PATIENCE) as answer:
                found = json.load(answer).get(name)
        except (OSError, ValueError, AttributeError, HTTPException):
            continue
        if found:
            return {"server": str(found)}
    return {"server": "not told"}


def said(choice: Mapping[str, Any]) -> bool:
    """Return whether a chunk's choice carries text.

    Example:
        >>> said({"delta": {"role": "assistant", "content": ""}}), said({"text": "a"})
        (False, True)
    """
    delta = choice.get("delta") or {}
    texts = (choice.get("text"), delta.get("content"), delta.get("reasoning_content"),
             delta.get("reasoning"))  # fmt: skip
    return any(texts)


def short_of(error: Any) -> str:
    """Return an error's message, cut."""
    message = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(message).split())[:300]


def body_of(error: urllib.error.HTTPError) -> Any:
    """Return the message in a refusal's body."""
    text = error.read().decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except ValueError:
        return text
    if not isinstance(content, Mapping):
        return text
    return content.get("error", content.get("detail", content))


def end(process: subprocess.Popen, patience: float = 20.0) -> None:
    """End a process that was started in a group of its own, and what it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what outlived it would keep a GPU's memory
    process.wait()
