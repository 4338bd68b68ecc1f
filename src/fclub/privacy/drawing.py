"""Runs OpenDP in a process of its own: one fresh child for every request, which draws and ends.

OpenDP draws from a generator in the memory of its process, which takes entropy from the operating
system when it first draws. Whoever copies that memory, as a machine does that is resumed twice from one
snapshot, draws the same numbers twice. So this process never draws. It forks a child for each request;
the child's generator takes its entropy at that moment, serves one request and is gone.

Requests and answers are lines of JSON. `{"draw": [[scale, count], …]}` is answered by as many lists of
whole numbers, `{"map": [scale, distance]}` by what OpenDP says that one release costs: ρ of zCDP for
data that differ by `distance` in the Euclidean norm. The file is run as a program; it imports nothing
of the package.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def measurement(dp: Any, scale: float) -> Any:
    """The discrete Gaussian on vectors of 64-bit integers; the default integer has 32 and saturates."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=scale)


def answer(dp: Any, request: dict[str, Any]) -> Any:
    """What OpenDP says; to be called in a process that ends afterwards."""
    if "map" in request:
        scale, distance = request["map"]
        return measurement(dp, scale).map(distance)
    return [measurement(dp, scale)([0] * count) for scale, count in request["draw"]]


def in_fresh_child(dp: Any, line: bytes) -> bytes:
    """Fork, let the child answer, and wait for its end; what did not end well is an error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as out:
                out.write(json.dumps({"answer": answer(dp, json.loads(line))}).encode())
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as heard:
        told = heard.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        return json.dumps({"error": f"the process that draws has ended with {code}"}).encode()
    return told


def main() -> None:
    """Serve until nobody asks any more. An interrupt at a terminal is for the server, not for this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A process that forks has no threads; NumPy, which OpenDP imports, would start some.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import opendp.prelude as dp

    dp.enable_features("contrib")
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(in_fresh_child(dp, line) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
