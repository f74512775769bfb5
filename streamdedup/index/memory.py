"""*Pure.* What numba lacks: loads from addresses, such as those of LMDB's map, and prefetching.

An address carries no length. The caller has checked that the bytes exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LINE = 64
"""Bytes of a cache line."""


def _loader(kind: Any, bits: int) -> Callable[[Any], Any]:
    @intrinsic
    def load(_context: Any, _address: Any) -> Any:
        def generate(_ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        return kind(types.int64), generate

    return cast("Callable[[Any], Any]", load)


load8 = _loader(types.uint8, 8)
load16 = _loader(types.uint16, 16)
load32 = _loader(types.uint32, 32)
load64 = _loader(types.int64, 64)


@intrinsic
def _prefetch(_context: Any, _address: Any) -> Any:

    def generate(ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return ctx.get_dummy_value()

    return types.void(types.int64), generate


prefetch = cast("Callable[[Any], None]", _prefetch)
"""Requests the cache line of an address, and returns before it has arrived."""


def address(array: Any) -> int:
    """Return the address of an array's first byte."""
    first: int = array.__array_interface__["data"][0]
    return first
