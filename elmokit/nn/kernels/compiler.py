"""The C files beside this one as a library, built once for the processor at hand; none where there is no C compiler.

It is kept in the cache folder (``ELMOKIT_CACHE``, else the usual place), under a name made from the sources, the
compiler's flags and the processor. ``CC`` names the compiler; ``CC=false`` keeps anything from being built.
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
from elmokit.nn.kernels.native import Library

FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
SOURCES = ("inference.c", "window.c", "convolution.c")
HEADERS = ("vectors.h", "panels.h")
BUILD_SECONDS = 60


@functools.cache
def library() -> Library | None:
    """The library, built if need be; None where it cannot be had (``why_not`` says why)."""
    return _built()[0]


def why_not() -> str:
    """Why there is no library; empty where there is one."""
    library()
    return _built()[1]


@functools.cache
def _built() -> tuple[Library | None, str]:
    if platform.system() != "Linux":
        return None, "the C kernels are built on Linux only"  # elsewhere it would bring a second pool of threads along
    try:
        try:
            return Library(_build()), ""
        except (OSError, AttributeError):  # a damaged file, such as a full disk leaves behind
            _place().unlink(missing_ok=True)
            return Library(_build()), ""
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return None, f"the C compiler refused the kernels: {lines[0] if lines else error.returncode}"
    # ValueError: CC cannot be taken apart into words.
    except (OSError, ElmoError, AttributeError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"the C kernels could not be built: {error}"


def _build() -> Path:
    """The built library in the cache, made if it is not there yet.

    OpenMP is PyTorch's: the library asks for ``libgomp.so.1``, which is loaded by then, so that both share threads.
    """
    path = _place()
    folder = path.parent
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            for name in (*HEADERS, *SOURCES):
                (Path(workshop) / name).write_bytes(_source(name))
            built = Path(workshop) / "kernels.so"
            subprocess.run(
                [*_command(), "-o", str(built), *(str(Path(workshop) / name) for name in SOURCES), "-lm"],
                check=True,
                capture_output=True,
                timeout=BUILD_SECONDS,
            )
            built.replace(path)
    return path


def _place() -> Path:
    parts = [*map(_source, (*HEADERS, *SOURCES)), " ".join(_command()).encode(), _processor().encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_dir() / "kernels" / f"{key}.so"


def _source(name: str) -> bytes:
    return (resources.files("elmokit") / "nn" / "kernels" / name).read_bytes()


def _command() -> list[str]:
    return [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS]


def _processor() -> str:
    """What ``-march=native`` depends on: a cache folder may be shared by unlike machines."""
    lines = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.split(":")[0].strip() in ("flags", "Features", "model name"):
                lines.append(line)
            elif not line and lines:
                break
    return "\n".join([platform.machine(), *lines])
