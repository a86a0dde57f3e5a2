"""Build the book: fetch the model, run every page, render, and say where to open it.

python book/build.py            build
python book/build.py --serve    build, then serve it on localhost

Pages are run again when their cells change, and all of them when the engine, a kernel, a figure or
the pinned environment changed since the last build: the cache knows the cells' text alone.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "_build"
INDEX = BUILT / "html" / "index.html"
STAMP = BUILT / "engine.sha256"
RAN_ON = ["specedu/**/*.py", "specedu/**/*.js", "specedu/**/*.css", "kernels/*.py",
          "benchmarks/recorded/*.json", "requirements.txt", "book/*.py"]  # fmt: skip


def fingerprint() -> str:
    """Return a digest of everything a page's cells run on, besides their own text."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in RAN_ON for path in ROOT.glob(pattern)):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build() -> int:
    """Build, and return the exit status; warnings are errors."""
    from specedu.models.loading import DEFAULT, resolve

    began = time.perf_counter()
    resolve(DEFAULT)  # a page must not wait for a download, nor hide one
    now = fingerprint()
    if not STAMP.exists() or STAMP.read_text() != now:
        shutil.rmtree(BUILT / ".jupyter_cache", ignore_errors=True)
    BUILT.mkdir(exist_ok=True)
    environment = os.environ | {
        "SPECEDU_STATIC": "1",
        "HF_HUB_OFFLINE": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else a kernel warns about frozen modules
    }
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", ROOT, "--all", "-W", "-n", "--keep-going"]
    # An incremental build does not repeat the warnings of unchanged pages, hence --all.
    status = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    seconds = time.perf_counter() - began
    if status:
        reports = sorted((BUILT / "html" / "reports").glob("**/*.err.log"))
        print(f"The book was not built ({seconds:.0f} s).", *reports, sep="\n", file=sys.stderr)
        return status
    STAMP.write_text(now)
    print(f"The book is built ({seconds:.0f} s). Open {INDEX.as_uri()}")
    return 0


def serve(port: int) -> None:
    """Serve the built book until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=INDEX.parent)
    with http.server.ThreadingHTTPServer(("localhost", port), handler) as server:
        print(f"Serving on http://localhost:{server.server_port}, until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and serve if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="serve the book when it is built")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    arguments = parser.parse_args(argv)
    status = build()
    if not status and arguments.serve:
        serve(arguments.port)
    return status


if __name__ == "__main__":
    sys.exit(main())
