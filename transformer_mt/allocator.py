"""Memory for large buffers that come and go: kept by the process, in large pages, where the C library lets us say so.

A search allocates and frees buffers of megabytes at each step, training at each layer. By default glibc gives each of
them back to the kernel, which then hands out zeroed pages of 4 KiB again and again.
"""

import ctypes
import sys
from functools import cache

RESERVE = 1 << 30
"""Bytes of addresses that get large pages; memory is taken only where they are used."""
LARGE_PAGE = 1 << 21
NEVER = -1
"""Free memory at the end of the heap is not given back, however much it is."""
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
HUGEPAGE = 14  # MADV_HUGEPAGE of Linux


@cache
def keep_large_buffers() -> bool:
    """Sets this process up, once; whether it could be done. It is for programs of our own, not for a host of ours."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.malloc.restype, library.malloc.argtypes = pointer, [size]
    library.free.argtypes, library.madvise.argtypes = [pointer], [pointer, size, ctypes.c_int]
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    library.mallopt(TOP_PAD, RESERVE // 8)
    if reserve := library.malloc(RESERVE):
        first = -(-reserve // LARGE_PAGE) * LARGE_PAGE
        library.madvise(first, RESERVE - LARGE_PAGE, HUGEPAGE)
        library.free(reserve)
    return bool(reserve)
