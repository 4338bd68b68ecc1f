"""How kernels are compiled: strict IEEE arithmetic, cached on disk.

Strict arithmetic (no fastmath) makes a kernel's result independent of where it is inlined, which is
what lets the compiled loop equal the readable one bit for bit.

numba invalidates a cached function only when its own file changes, not when a kernel it calls does.
The cache therefore lives in a folder named after a digest of every file that holds kernels or helps to
compile them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config as numba_config

from fclub.paths import cache_root

njit: Any = numba.njit
typeof: Any = numba.typeof
Function = TypeVar("Function", bound=Callable[..., Any])


@lru_cache(maxsize=1)
def cache_folder() -> str:
    """Where compiled kernels are kept: in the cache, or in a temporary folder."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(package.glob("*/*.py")):
        text = source.read_bytes()
        if source.parent.name == "core" or b"@compiled" in text:
            digest.update(text)
    folder = cache_root() / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return tempfile.mkdtemp(prefix="fclub-kernels-")
    return str(folder)


def _compile(function: Function, **options: Any) -> Function:
    settings: Any = numba_config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = cache_folder()
    try:
        kernel: Function = njit(cache=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
            function
        )
    finally:
        settings.CACHE_DIR = before
    return kernel


def compiled(function: Function) -> Function:
    """Compile a kernel with numba, cached in `cache_folder`; `.py_func` keeps the Python original."""
    return _compile(function)


def inner(function: Function) -> Function:
    """Compile a kernel that only other kernels call: without a door from Python it compiles faster."""
    return _compile(function, no_cpython_wrapper=True)


class Direct:
    """Calls a kernel without looking at the types of its state's arrays again at every call.

    For a state of dozens of arrays that takes longer than the kernel. The first argument is the state,
    which is looked at when it is another one than before; arrays after it are expected to be
    C-contiguous float64. Others go the long way.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._state, self._entry = kernel, None, kernel

    def __call__(self, state: Any, *arguments: Any) -> Any:
        for argument in arguments:
            if type(argument) is np.ndarray and not _plain(argument):
                return self._kernel(state, *arguments)
        if state is not self._state:
            self._state, self._entry = state, for_types(self._kernel, state, *arguments)
        return self._entry(state, *arguments)


def _plain(array: Any) -> bool:
    return bool(array.flags.c_contiguous and array.dtype == np.float64)


def for_types(kernel: Any, *arguments: Any) -> Any:
    """The kernel compiled for arguments of these types; itself where numba is told not to compile."""
    settings: Any = numba_config
    if settings.DISABLE_JIT:
        return kernel
    key = kernel, _layout(arguments)
    if key not in _entries:
        _entries[key] = kernel.compile(tuple(typeof(argument) for argument in arguments))
    return _entries[key]


_entries: dict[Any, Any] = {}
"""What `for_types` has found: numba takes milliseconds to tell the type of a large state."""


def _layout(value: Any) -> Any:
    """What decides the type that numba gives to an argument."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        return value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable
    if isinstance(value, tuple):
        return type(value), *map(_layout, value)
    return type(value)
