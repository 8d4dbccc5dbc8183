"""Digests of tensors and scalars: sensitive to order and sign, the same in every process.

xxh3 reads memory as fast as it comes. A digest is chained: the one before seeds the next.
"""

import ctypes
import struct
from typing import Any

import torch
from xxhash import xxh3_64_intdigest

MASK = (1 << 64) - 1
_double = struct.Struct("<d")
_layouts: dict[Any, tuple[Any, int]] = {}
_strided = torch.strided
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter


def of_tensor(tensor: torch.Tensor, seed: int = 0) -> int:
    """A digest of a tensor's shape, layout and bytes, on top of `seed`."""
    if tensor.device.type != "cpu" or tensor.layout is not _strided:
        return _unusual(tensor, seed)
    key = (tensor.shape, tensor.stride(), tensor.dtype)
    known = _layouts.get(key)
    if known is None:
        known = _layouts[key] = _layout(tensor)
    window, label = known
    if window is None:
        return _unusual(tensor, seed)
    address = tensor.data_ptr()
    if not address:
        return label ^ seed
    return xxh3_64_intdigest(window.from_address(address), label ^ seed)


def _layout(tensor: torch.Tensor) -> tuple[Any, int]:
    """How to reach the bytes of tensors of this shape, stride and type, if without a copy; a label of the three."""
    label = xxh3_64_intdigest(repr((tuple(tensor.shape), tensor.stride(), str(tensor.dtype))).encode())
    steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in steps:  # dense: each dimension begins where the smaller ones end
        if size != 1 and stride != expected:
            return None, label
        expected *= size
    if tensor.is_complex():
        return None, label  # may be conjugated without its bytes showing it
    return ctypes.c_char * (tensor.numel() * tensor.element_size()), label


def _unusual(tensor: torch.Tensor, seed: int) -> int:
    """Sparse tensors, tensors with gaps, and tensors on another device than the CPU."""
    if tensor.device.type == "meta" or type(tensor) not in (_Tensor, _Parameter):
        return seed
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc):
        parts = (tensor.values(), tensor._nnz())
        return of_tensor(parts[0], seed)
    if tensor.layout is not _strided:
        if tensor.layout is torch.sparse_coo:
            return of_tensor(tensor._values(), of_tensor(tensor._indices(), seed))
        return of_tensor(tensor.to_dense(), seed)
    if tensor.device.type != "cpu":
        return _on_device(tensor, seed)
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return of_tensor(tensor, seed)


def _on_device(tensor: torch.Tensor, seed: int) -> int:
    """The bytes as 32-bit words times odd 64-bit weights, summed modulo 2^64: one number leaves the device.

    The sum is the same in any order of additions. Written to PyTorch's documentation; not run on a device.
    """
    words = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(words, (0, -words.numel() % 4)).view(torch.int32).to(torch.int64)
    weights = torch.arange(1, words.numel() + 1, device=words.device) * -7046029254386353131 | 1
    return xxh3_64_intdigest(struct.pack("<q", int((words * weights).sum().item())), seed)


def of_scalar(value: Any, seed: int = 0) -> int:
    """A digest of a number, on top of `seed`; other things leave it as it is."""
    if isinstance(value, float):
        return xxh3_64_intdigest(_double.pack(value), seed)
    if isinstance(value, int):
        return xxh3_64_intdigest(
            value.to_bytes(8 + value.bit_length() // 64 * 8, "little", signed=True), seed
        )
    if isinstance(value, complex):
        return xxh3_64_intdigest(_double.pack(value.real) + _double.pack(value.imag), seed)
    return seed
