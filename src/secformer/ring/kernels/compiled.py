"""Kernels in CUDA C++, compiled where they run: by NVRTC, which comes with torch, into the driver, for one device at a time.

Triton is the rule here. C++ is for what it cannot say: which group of warps does what.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from triton.runtime.cache import get_cache_manager  # pyright: ignore[reportMissingImports]

from secformer.errors import KernelError


class Function:
    """A kernel that takes one structure, on one device."""

    def __init__(self, source: str, name: str, shared_bytes: int, device: torch.device) -> None:
        self.device, self.shared_bytes = device, shared_bytes
        major, minor = torch.cuda.get_device_capability(device)
        self._early = major >= _HOPPER
        image = compiled(source, f"sm_{major}{minor}{'a' * (major >= _HOPPER)}")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # so that this thread has the device's context
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), image))
            _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode()))
            _check(_driver().cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared_bytes))

    def launch(self, blocks: int, threads: int, structure: ctypes.Structure) -> None:
        """On the device's current stream, as soon as the kernel before allows it (`griddepcontrol.launch_dependents`) or ends:
        the function itself must wait (`griddepcontrol.wait`) before it touches memory that others use. (Older devices than Hopper
        know neither: there the kernel before has ended.)"""
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(structure))
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            early = _Attribute(_PROGRAMMATIC_SERIALIZATION, 1)
            launching = _Launch(
                blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream, ctypes.pointer(early), int(self._early)
            )  # fmt: skip
            _check(_driver().cuLaunchKernelEx(ctypes.byref(launching), self._function, arguments, None))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and a union of 64 bytes of which it takes the first word."""

    _fields_ = [("id", ctypes.c_int), ("_gap", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60)]

    def __init__(self, number: int, value: int) -> None:
        super().__init__(number, 0, value)


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise KernelError(f"CUDA: {(text.value or b'error').decode()} ({code})")


_HOPPER = 9
_PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def compiled(source: str, architecture: str) -> bytes:
    """The machine's code (a cubin), kept in Triton's cache."""
    key = "\n".join((source, architecture, torch.version.cuda or ""))
    kept = get_cache_manager(sha256(key.encode()).hexdigest())
    if found := kept.get_file(_KEPT):
        return Path(found).read_bytes()
    image = _compile(source, architecture)
    kept.put(image, _KEPT)
    return image


_KEPT = "kernel.cubin"


def _compile(source: str, architecture: str) -> bytes:
    library = _library()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [b"--std=c++17", f"--gpu-architecture={architecture}".encode()]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    what = "ProgramLog" if failed else "CUBIN"
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, result)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise KernelError(result.value.decode())
    return result.raw


@cache
def available() -> bool:
    try:
        return _library() is not None
    except KernelError:
        return False


@cache
def _library() -> Any:
    """NVRTC: the loader's, or the one among torch's dependencies, with what it looks for beside itself."""
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    with suppress(OSError):
        return ctypes.CDLL(name)
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with suppress(PackageNotFoundError, OSError):
            paths = [str(file.locate()) for file in files(package) or ()]
            for path in paths:
                if "libnvrtc-builtins.so" in path:
                    ctypes.CDLL(path)
            for path in paths:
                if path.endswith(name):
                    return ctypes.CDLL(path)
    raise KernelError(f"{name} was not found; it comes with torch's builds for CUDA")
