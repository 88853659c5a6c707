"""Compiles the kernels where they run, and keeps them in a folder of the user's alone."""

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import torch

from copyspec_eval.provenance import processor_features

logger = logging.getLogger("lm_eval.copyspec")

_HEADERS = ("vectors.h", "tiles.h", "attention.h", "attention_tiles.h")
_SOURCES = ("attention.cpp", "linear.cpp", "elementwise.cpp")
_FLAGS = (
    *("-std=c++20", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-Wno-psabi"),
    # Multiply-adds are written out: the compiler may not choose, tile by tile, how to round.
    "-ffp-contract=off",
    "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native",
)


def compiler() -> str | None:
    """Path of the C++ compiler: `$CXX`, else the usual one; None if there is none."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return which(os.environ.get("CXX") or usual)


def load(dtype: torch.dtype) -> ctypes.CDLL:
    """The kernels of one dtype, from the user's cache or compiled: a model needs no other.

    OSError or CalledProcessError if they do not compile.
    """
    # The processor's features are in the name, since a home folder may serve several machines.
    headers = "\n".join([f"// {processor_features()}", *map(_text, _HEADERS)])
    sources = [f"{headers}\n{_text(name)}".encode() for name in _SOURCES]
    command = [compiler() or "", *_flags(dtype)]
    key = hashlib.sha256("\0".join(command).encode() + b"".join(sources)).hexdigest()[:20]
    cache = private_cache()
    for path in cache.glob(f"{key}-*.so") if cache else ():
        if path.is_file() and path.stem == f"{key}-{_digest(path)}":
            return ctypes.CDLL(str(path))
    with TemporaryDirectory(dir=cache) as temporary:
        made = Path(temporary, "kernels.so")
        objects = [str(Path(temporary, f"{name}.o")) for name in _SOURCES]

        def compiled(source: bytes, target: str) -> None:
            _run([*command, "-c", "-x", "c++", "-", "-o", target], source)

        with ThreadPoolExecutor() as pool:
            list(pool.map(compiled, sources, objects))
        _run([*command, *objects, "-o", str(made)])
        # Loaded before it is moved or deleted: the process keeps what it has mapped.
        library = ctypes.CDLL(str(made))
        if cache:
            made.replace(cache / f"{key}-{_digest(made)}.so")
    return library


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _run(command: list[str], source: bytes = b"") -> None:
    subprocess.run(command, input=source, check=True, capture_output=True)


def _flags(dtype: torch.dtype) -> list[str]:
    torch_libraries = str(Path(torch.__file__).parent / "lib")
    openmp = ["-fopenmp"]
    if sys.platform == "darwin":
        openmp = ["-Xclang", "-fopenmp", f"-L{torch_libraries}", "-lomp"]
    settings = []
    if dtype == torch.bfloat16:
        settings = ["-DBFLOAT16", *["-DMAY_USE_TILES"] * _may_use_tiles()]
    return [*_FLAGS, *openmp, *settings, *os.environ.get("CXXFLAGS", "").split()]


def _may_use_tiles() -> bool:
    """Whether Linux lets this process use AMX's tiles, which it has to be asked for."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return False
    # oneDNN's variable limits our kernels, too.
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper().startswith("AVX"):
        return False
    arch_prctl, request, tiles = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tiles) == 0)


def private_cache() -> Path | None:
    """A folder that nobody else can write to; None if there cannot be one."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = caches / "copyspec_eval" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        is_private = status.st_uid == os.getuid() and not status.st_mode & 0o022
        return folder if is_private and os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # or there is no home
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]
