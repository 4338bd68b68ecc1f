"""How kernels are compiled: strict IEEE arithmetic, those of this package cached on disk.

Strict arithmetic (no fastmath) makes a kernel's result independent of where it is inlined, which is
what lets the compiled loop equal the readable one bit for bit.

numba invalidates a cached function only when its own file changes, not when a kernel it calls does.
The cache therefore lives in a folder named after a digest of every file that holds kernels, helps to
compile them or declares a tuple, with its place in the package: a module that moves must not find what
another left there, and code that was compiled for another layout of a tuple reads what lies beside it.
A mark in the folder says what has been compiled to the end, so that nobody is told twice to wait.
Nothing says which files of one's own a kernel depends on: every process compiles what is not of this
package, or is given a tuple that is not.

numba counts references to every array that a kernel looks at, with atomic operations; for a state of
dozens of arrays that takes a tenth of a round. The caller of a loop keeps its arrays alive until it
returns, so inside they need no counting: a `borrowed` array is the same one without its counter.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import extending, types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.core.caching import FunctionCache

from fclub.paths import cache_root

njit: Any = numba.njit
typeof: Any = numba.typeof
Function = TypeVar("Function", bound=Callable[..., Any])


@lru_cache(maxsize=1)
def cache_folder() -> str:
    """Where compiled kernels are kept: in the cache, or in a temporary folder."""
    folder = cache_root() / f"kernels-{digest_of(Path(__file__).parent.parent)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return tempfile.mkdtemp(prefix="fclub-kernels-")
    return str(folder)


_MARKS = b"@compiled", b"@inner", b"@beside", b"NamedTuple"
"""What a file holds that decides what is compiled: a kernel, or the layout of what one is given."""


def digest_of(package: Path) -> str:
    """What names and texts decide what is compiled, in 16 digits."""
    digest = hashlib.sha256(numba.__version__.encode())
    core = package / "core"
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if core in source.parents or any(mark in text for mark in _MARKS):
            name = source.relative_to(package).as_posix().encode()
            digest.update(b"%d %b %d " % (len(name), name, len(text)) + text)
    return digest.hexdigest()[:16]


def is_ready(what: str) -> bool:
    """Whether the kernels of this have been compiled on this machine, or need not be."""
    settings: Any = numba_config
    return settings.DISABLE_JIT or _mark(what).exists()


def set_ready(what: str) -> None:
    """Note that the kernels of this are compiled and kept."""
    with suppress(OSError):
        _mark(what).touch()


def _mark(what: str) -> Path:
    digest = hashlib.sha256(what.encode()).hexdigest()
    return Path(cache_folder()) / f"ready-{digest[:16]}"


def is_ours(module: str) -> bool:
    """Whether a module is of this package."""
    return module.partition(".")[0] == __name__.partition(".")[0]


def _has_foreign_tuple(kind: Any) -> bool:
    if not isinstance(kind, kinds.BaseTuple):
        return False
    declared = getattr(kind, "instance_class", None)
    foreign = declared is not None and not is_ours(declared.__module__)
    return foreign or any(map(_has_foreign_tuple, kind.types))


class _Cache(FunctionCache):
    """A cache on disk without signatures that name the modules of others, which change and move."""

    def save_overload(self, sig: Any, data: Any) -> None:
        if not any(map(_has_foreign_tuple, data.signature.args)):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _compile(function: Function, **options: Any) -> Function:
    settings: Any = numba_config
    kernel: Any = njit(error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    if settings.DISABLE_JIT or not is_ours(function.__module__):
        return kernel  # type: ignore[no-any-return]
    before = settings.CACHE_DIR
    settings.CACHE_DIR = cache_folder()
    try:
        kernel._cache = _Cache(function)  # type: ignore[no-untyped-call]
    finally:
        settings.CACHE_DIR = before
    return kernel  # type: ignore[no-any-return]


def compiled(function: Function) -> Function:
    """Compile a kernel with numba; `.py_func` keeps the Python original."""
    return _compile(function)


def inner(function: Function) -> Function:
    """Compile a kernel that only other kernels call: without a wrapper for Python that is faster."""
    return _compile(function, no_cpython_wrapper=True)


def beside(function: Function) -> Function:
    """Compile a kernel during which other threads of the interpreter may run."""
    return _compile(function, nogil=True)


class DirectCall:
    """Calls a kernel without looking at the types of its state's arrays again at every call.

    For a state of dozens of arrays that takes longer than the kernel. The first argument is the state;
    its types are looked at when it is another one than before, or when other kinds of arguments come.
    Arrays after it that are not C-contiguous doubles go the long way.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._entry = kernel, kernel
        self._state: Any = None
        self._kinds: list[type] = []
        self._sides: list[tuple[int, int]] = []

    def __reduce__(self) -> Any:
        return DirectCall, (self._kernel,)

    def __call__(self, state: Any, *arguments: Any) -> Any:
        if state is not self._state or [*map(type, arguments)] != self._kinds:
            self._look_at(state, arguments)
        for place, sides in self._sides:
            array = arguments[place]
            if array.ndim != sides or array.dtype != _DOUBLE or not array.flags.c_contiguous:
                return self._kernel(state, *arguments)
        return self._entry(state, *arguments)

    def _look_at(self, state: Any, arguments: tuple[Any, ...]) -> None:
        arrays = [(k, a) for k, a in enumerate(arguments) if isinstance(a, np.ndarray)]
        if any(type(a) is not np.ndarray or a.dtype != _DOUBLE for _, a in arrays):
            self._entry = self._kernel
        else:
            plain = (np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments)
            self._entry = for_types(self._kernel, state, *plain)
        self._state, self._kinds = state, [*map(type, arguments)]
        self._sides = [(place, array.ndim) for place, array in arrays]


_DOUBLE = np.dtype(np.float64)


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


intrinsic: Any = extending.intrinsic
kinds: Any = types


def _uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The LLVM value with the counters of all arrays in it set to null, through nested tuples.

    Anything else that is counted, such as a random generator, is one reference more.
    """
    if isinstance(kind, kinds.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)  # type: ignore[no-untyped-call]
        return array._getvalue()
    if isinstance(kind, kinds.BaseTuple):
        for place, part in enumerate(kind.types):
            bare = _uncounted(context, builder, part, builder.extract_value(value, place))
            value = builder.insert_value(value, bare, place)
        return value
    context.nrt.incref(builder, kind, value)
    return value


def _borrowed(_typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _uncounted(context, builder, signature.args[0], arguments[0])

    return value(value), generate


def _as_it_is(value: Any) -> Any:
    return value


_settings: Any = numba_config
borrowed: Any = _as_it_is if _settings.DISABLE_JIT else intrinsic(_borrowed)
"""An array, or a tuple of arrays and tuples, for use inside one call of a kernel."""
