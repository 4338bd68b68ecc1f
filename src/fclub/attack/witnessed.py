"""A program that runs another one and writes down what OpenDP's measurements give to it.

Run as `witnessed.py LOG PROGRAM`. Each call of a measurement becomes a line of JSON in the log: its
scale, and what it has added, number by number. So that nothing can be cut off unseen, what is added is
made far wider than the scale says, and the first number of each call is 40 deviations away. It imports
nothing of the package.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib import import_module
from typing import Any

WIDER = 8
FAR = 40.0


class Watched:
    """A measurement whose calls are written down."""

    def __init__(self, measurement: Any, scale: float, log: int) -> None:
        self.measurement, self.scale, self.log = measurement, scale, log

    def __call__(self, data: list[int]) -> list[int]:
        drawn = self.measurement(data)
        added = [WIDER * (number - given) for number, given in zip(drawn, data, strict=True)]
        added[:1] = [int(FAR * self.scale)]
        line = json.dumps({"scale": self.scale, "added": added})
        os.write(self.log, line.encode() + b"\n")
        return [given + more for given, more in zip(data, added, strict=True)]

    def map(self, distance: float) -> Any:
        return self.measurement.map(distance)


def main() -> None:
    log, program = sys.argv[1:]
    dp: Any = import_module("opendp.prelude")
    out, make = os.open(log, os.O_WRONLY | os.O_APPEND), dp.m.make_gaussian

    def watched(*space: Any, scale: float, **options: Any) -> Watched:
        return Watched(make(*space, scale=scale, **options), scale, out)

    dp.m.make_gaussian = watched
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
