"""Fingerprints of tensors and state dicts: equal if and, for practical purposes, only if the bits are.

`torch.hash_tensor` is no substitute: it is an exclusive or, blind to the order of the values and to any
value that occurs an even number of times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from repro_tutorial.messages import InputError


def fingerprint_tensor(tensor: torch.Tensor) -> str:
    """32 hex digits (XXH3, 128 bits) over dtype, shape and the values' bits, whatever the strides and the device.

    It notices the order of values, the sign of a zero and the payload of a NaN.

    Raises:
        InputError: `tensor` has no values of its own to read (meta device, nested layout).

    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> fingerprint_tensor(a) == fingerprint_tensor(a.T.contiguous().T)
    True
    >>> fingerprint_tensor(torch.tensor([0.0])) == fingerprint_tensor(torch.tensor([-0.0]))
    False

    Lesson: line_fit
    """
    digest = xxhash.xxh3_128()
    _feed(digest, tensor, "tensor")
    return digest.hexdigest()


def fingerprint_state_dict(state: Mapping[str, Any]) -> str:
    """32 hex digits over a state dict: tensors, arrays, numbers and text at any depth, with their names.

    Names count, their order in a dict does not: that is how `load_state_dict` reads one. The order in
    lists and tuples counts. Optimizer and scheduler state dicts will do as well.

    Raises:
        InputError: something in it is neither tensor nor plain data; the line names it.

    >>> model = torch.nn.Linear(2, 1)
    >>> before = fingerprint_state_dict(model.state_dict())
    >>> with torch.no_grad():
    ...     _ = model.bias.add_(1)
    >>> before == fingerprint_state_dict(model.state_dict())
    False

    Lesson: line_fit
    """
    digest = xxhash.xxh3_128()
    _feed(digest, state, "state")
    return digest.hexdigest()


def _feed(digest: xxhash.xxh3_128, value: Any, name: str) -> None:
    """Add `value` to `digest`, each part with its kind and size before it, so that no two values run together."""
    if isinstance(value, torch.Tensor):
        _feed_tensor(digest, value, name)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise InputError("fingerprint.no_data", name=name, kind="numpy.ndarray of objects")
        _label(digest, f"array {array.dtype.descr} {array.shape};")
        digest.update(array.tobytes())
    elif isinstance(value, Mapping):
        _label(digest, f"dict {len(value)};")
        for key in sorted(value, key=lambda key: (type(key).__name__, key)):
            _feed(digest, key, f"{name} key")
            _feed(digest, value[key], f"{name}.{key}")
    elif isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        _label(digest, f"{type(value).__name__} {len(data)};")
        digest.update(data)
    elif isinstance(value, Sequence):
        _label(digest, f"list {len(value)};")
        for index, part in enumerate(value):
            _feed(digest, part, f"{name}[{index}]")
    elif isinstance(value, bool | int | float | complex | None | torch.dtype | torch.device | torch.Size):
        _label(digest, f"{type(value).__name__} {value!r};")
    else:
        raise InputError("fingerprint.no_data", name=name, kind=type(value).__name__)


def _feed_tensor(digest: xxhash.xxh3_128, tensor: torch.Tensor, name: str) -> None:
    if tensor.device.type == "meta" or tensor.is_nested or tensor.is_quantized:
        special = "quantized tensor" if tensor.is_quantized else f"tensor on {tensor.device}"
        raise InputError("fingerprint.no_data", name=name, kind=special)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    _label(digest, f"tensor {tensor.dtype} {tuple(tensor.shape)} {tensor.layout};")
    if tensor.is_sparse:
        tensor = tensor.coalesce()  # the same values may be stored in several ways
        _feed_tensor(digest, tensor.indices(), name)
        _feed_tensor(digest, tensor.values(), name)
        return
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(data.numpy().data)


def _label(digest: xxhash.xxh3_128, label: str) -> None:
    digest.update(label.encode())
