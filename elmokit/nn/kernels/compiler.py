"""Compile the C files in this directory into a shared library for this machine's processor.

Compiling on the user's machine lets ``-march=native`` use every instruction that the processor has, without a wheel
per processor. It takes about two seconds, once: the library is kept in the cache directory (``ELMOKIT_CACHE``, else
the platform's usual one) under a name derived from the sources, the compiler command and the processor, so a change
of any of them compiles again. ``CC`` names the compiler; ``CC=false`` disables compiling. Without a compiler
everything still works, on PyTorch's own libraries.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.io.cache import cache_dir
from elmokit.nn.kernels.native import NativeLibrary

# Not -ffast-math: it assumes that there is no NaN (the kernels let a NaN pass, so that broken inputs are noticed), and
# it allows sums in any order (a row must get the same bits in any batch). The two -fno flags give up only errno and
# floating-point exceptions, which nobody reads and which would keep loops from being vectorized.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
SOURCES = ("lstm_inference.c", "lstm_training.c", "char_convolution.c")
HEADERS = ("vectors.h", "packed_product.h")
# A compiler wrapper that hangs, for example on a network license, must not hang the program: it falls back to PyTorch.
BUILD_SECONDS = 60


@functools.cache
def load_library() -> NativeLibrary | None:
    """Return the library, compiled if necessary; None if that is impossible (``why_unavailable`` has the reason)."""
    return _load()[0]


def why_unavailable() -> str:
    """Return why there is no native library; an empty string if there is one."""
    load_library()
    return _load()[1]


@functools.cache
def _load() -> tuple[NativeLibrary | None, str]:
    if platform.system() != "Linux":
        # PyTorch brings another OpenMP library there, so that two thread pools would compete for the cores.
        return None, "the C kernels are built on Linux only"
    try:
        try:
            return NativeLibrary(_compiled_file()), ""
        except (OSError, AttributeError):  # a damaged file, for example one cut short by a full disk: build it again
            _library_path().unlink(missing_ok=True)
            return NativeLibrary(_compiled_file()), ""
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return None, f"the C compiler rejected the kernels: {lines[0] if lines else error.returncode}"
    # ValueError: CC is not a valid command line.
    except (OSError, ElmoError, AttributeError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"the C kernels could not be built: {error}"


def _compiled_file() -> Path:
    """Return the path of the compiled library, compiling it if it is not in the cache.

    The library links against OpenMP by the name ``libgomp.so.1``. PyTorch has loaded that library by now, so the loader
    reuses PyTorch's copy and both share one thread pool.
    """
    path = _library_path()
    directory = path.parent
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as build_directory:
            build = Path(build_directory)
            for name in (*HEADERS, *SOURCES):
                (build / name).write_bytes(_source(name))
            output = build / "kernels.so"
            subprocess.run(
                [*_command(), "-o", str(output), *(str(build / name) for name in SOURCES), "-lm"],
                check=True,
                capture_output=True,
                timeout=BUILD_SECONDS,
            )
            output.replace(path)  # atomic: another process sees no library or a complete one
    return path


def _library_path() -> Path:
    parts = [*map(_source, (*HEADERS, *SOURCES)), " ".join(_command()).encode(), _processor().encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_dir() / "kernels" / f"{key}.so"


def _source(name: str) -> bytes:
    return (resources.files("elmokit") / "nn" / "kernels" / name).read_bytes()


def _command() -> list[str]:
    return [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS]


def _processor() -> str:
    """Return what ``-march=native`` depends on; machines of different kinds may share one cache directory."""
    lines = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.split(":")[0].strip() in ("flags", "Features", "model name"):
                lines.append(line)
            elif not line and lines:
                break
    return "\n".join([platform.machine(), *lines])
