"""Arrays that a compiled loop borrows instead of owning.

numba counts references to every array that a kernel looks at, with atomic operations; for a state of
dozens of arrays that takes a tenth of a round. Who calls a loop keeps its arrays alive until it
returns, so inside they need no counting: a borrowed array is the same one without its counter.
"""

from __future__ import annotations

from typing import Any

from numba import extending, types
from numba.core import cgutils
from numba.core import config as numba_config

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
