"""Kernels in CUDA C++, compiled where they run: by NVRTC, which comes with torch, into the driver, for one device at a time.

Triton is the rule here. C++ is for what it cannot say: which group of warps does what.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import Any

import torch


class CompilationError(RuntimeError):
    """The compiler is missing, or refused the source."""


class Function:
    """A kernel that takes one structure, on one device."""

    def __init__(self, source: str, name: str, shared_bytes: int, device: torch.device) -> None:
        self.shared_bytes = shared_bytes
        self._driver = ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability(device)
        image = _compiled(source, f"sm_{major}{minor}a")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # the device has its context
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), image))
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
            self._check(self._driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared_bytes))

    def launch(self, blocks: int, threads: int, structure: ctypes.Structure, device: torch.device) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(structure))
        with torch.cuda.device(device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            sizes = (blocks, 1, 1, threads, 1, 1, self.shared_bytes)
            self._check(self._driver.cuLaunchKernel(self._function, *sizes, stream, arguments, None))

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise CompilationError(f"CUDA: {(text.value or b'error').decode()} ({code})")


_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def _compiled(source: str, architecture: str) -> ctypes.Array[ctypes.c_char]:
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
        raise CompilationError(result.value.decode())
    return result


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
            return next(ctypes.CDLL(path) for path in paths if path.endswith(name))
    raise CompilationError(f"{name} was not found")
