"""A server that speaks OpenAI's protocol, in this process: quick, and counting drafts."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OpenAIServer:
    """Serves one model at a free port of loopback.

    Args:
        model: its name.
        accepted: drafts that each step accepts, of ``kappa``; None does not speculate.
        kappa: drafts a step.
        step: seconds that a step takes.
        page: ``vllm``, ``sglang`` or ``none``; a name in ``without`` is left off the page.
        without: of counters.
        timings: whether llama.cpp's timings are in the answers.
        usage: whether tokens are counted.
        refuse: a status that every request gets.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        model: str = "m",
        accepted: int | None = None,
        kappa: int = 3,
        step: float = 0.002,
        page: str = "vllm",
        without: str = "-",
        timings: bool = False,
        usage: bool = True,
        refuse: int | None = None,
        port: int = 0,
    ) -> None:
        self.settings = (model, accepted, kappa, step, page, without, timings, usage, refuse)
        self.counts = {"drafts": 0, "tokens": 0, "most": 0}
        self.running: set[BaseHTTPRequestHandler] = set()
        self.asked: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                server.get(self)

            def do_POST(self) -> None:
                server.post(self)

        self.http = Patient(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> OpenAIServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        model, _, _, _, page, *_ = self.settings
        if handler.path == "/v1/models":
            body = json.dumps({"data": [{"id": model}]})
        elif handler.path == "/version":
            body = json.dumps({"version": "1.2.3"})
        elif handler.path == "/metrics" and page != "none":
            body = self.metrics()
        else:
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body.encode())

    def metrics(self) -> str:
        _, accepted, kappa, _, page, without, *_ = self.settings
        accepted, drafts = accepted or 0, self.counts["drafts"]
        if page == "sglang":
            return f"sglang:spec_accept_length {accepted + 1}.0\nsglang:num_running_reqs 0\n"
        rows = {
            "spec_decode_num_drafts_total": drafts,
            "spec_decode_num_draft_tokens_total": drafts * kappa,
            "spec_decode_num_accepted_tokens_total": drafts * accepted,
            **{
                f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}': drafts
                * (i < accepted)
                for i in range(kappa)
            },
        }
        return "".join(f"vllm:{k} {v}\n" for k, v in rows.items() if without not in k)

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        _, accepted, kappa, step, _, _, timings, usage, refuse = self.settings
        asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.asked.append({**asked, "path": handler.path})
            self.running.add(handler)
            self.counts["most"] = max(self.counts["most"], len(self.running))
        try:
            if refuse:
                body = json.dumps({"error": {"message": "the context is too short"}}).encode()
                handler.send_response(refuse)
                handler.end_headers()
                handler.wfile.write(body)
                return
            handler.send_response(200)
            handler.end_headers()
            left, drafts = asked["max_tokens"], 0
            first = True
            while left > 0:
                time.sleep(step)
                emitted = 1 if first or accepted is None else min(accepted + 1, left)
                if not first and accepted is not None:
                    drafts += 1
                first = False
                left -= emitted
                delta = {"choices": [{"delta": {"content": "x" * emitted}, "text": "x"}]}
                self.send(handler, delta)
            end: dict[str, Any] = {"choices": []}
            if usage:
                end["usage"] = {"completion_tokens": asked["max_tokens"]}
            if timings:
                end["timings"] = {"predicted_n": asked["max_tokens"], "draft_n": drafts * kappa,
                                  "draft_n_accepted": drafts * (accepted or 0)}  # fmt: skip
            with self.lock:  # before the client knows that it is over, and asks again
                self.counts["drafts"] += drafts
                self.running.discard(handler)
            self.send(handler, end)
            handler.wfile.write(b"data: [DONE]\n\n")
        finally:
            with self.lock:
                self.running.discard(handler)

    def send(self, handler: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
        handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        handler.wfile.flush()


class Patient(ThreadingHTTPServer):
    """Says nothing of clients that hang up: a timeout is what some tests are about."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass
