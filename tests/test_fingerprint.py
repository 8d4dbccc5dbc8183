"""A fingerprint notices every bit that counts, and nothing else."""

import math
import struct

import numpy as np
import pytest
import torch

from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import InputError

BASE = torch.arange(1.0, 13.0).reshape(3, 4)


def changed(change) -> torch.Tensor:
    copy = BASE.clone()
    change(copy)
    return copy


def nan(payload: int) -> torch.Tensor:
    """A float32 NaN with the given low bits."""
    return torch.frombuffer(bytearray(struct.pack("<I", 0x7FC00000 | payload)), dtype=torch.float32)


DIFFERENT = {
    "one ulp": changed(
        lambda t: t.view(-1)[5].copy_(torch.tensor(math.nextafter(6, 7), dtype=torch.float32) + 5e-7)
    ),
    "two values swapped": changed(lambda t: t.view(-1)[:2].copy_(torch.tensor([2.0, 1.0]))),
    "rows permuted": BASE[[1, 0, 2]],
    "all signs": -BASE,
    "two signs": changed(lambda t: t[0, :2].neg_()),
    "shape": BASE.reshape(4, 3),
    "transposed": BASE.T,
    "dtype": BASE.double(),
    "flat": BASE.flatten(),
    "shorter": BASE[:2],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_change_is_noticed(name):
    assert fingerprint_tensor(DIFFERENT[name]) != fingerprint_tensor(BASE)


def test_what_torch_hash_tensor_is_blind_to():
    """It is an exclusive or: the order of values and even repeats vanish in it."""
    permuted, repeated = BASE[[1, 0, 2]].contiguous(), torch.ones(4)

    assert torch.equal(torch.hash_tensor(permuted), torch.hash_tensor(BASE))
    assert torch.equal(torch.hash_tensor(repeated), torch.hash_tensor(torch.full((4,), 7.0)))
    assert fingerprint_tensor(permuted) != fingerprint_tensor(BASE)
    assert fingerprint_tensor(repeated) != fingerprint_tensor(torch.full((4,), 7.0))


@pytest.mark.parametrize(
    ("a", "b"),
    [(torch.tensor([0.0]), torch.tensor([-0.0])), (nan(1), nan(2)), (torch.tensor([]), torch.tensor([[]]))],
    ids=["sign of zero", "NaN payload", "empty shapes"],
)
def test_bits_that_compare_equal_or_never_are_told_apart(a, b):
    assert fingerprint_tensor(a) != fingerprint_tensor(b)
    assert fingerprint_tensor(a) == fingerprint_tensor(a.clone())


@pytest.mark.parametrize(
    "same",
    [
        BASE.T.contiguous().T,
        BASE.repeat_interleave(2, dim=1)[:, ::2],
        torch.cat([torch.zeros(1, 4), BASE])[1:],
        BASE.clone().requires_grad_(),
        torch.nn.Parameter(BASE),
    ],
    ids=["other strides", "every second", "offset", "requires_grad", "parameter"],
)
def test_strides_and_gradients_do_not_count(same):
    assert fingerprint_tensor(same) == fingerprint_tensor(BASE)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint32, torch.float16, torch.bfloat16,
        torch.float64, torch.complex64, torch.float8_e4m3fn,
    ],
    ids=str,
)  # fmt: skip
def test_every_dtype_has_a_fingerprint(dtype):
    one, other = torch.tensor([1, 0]).to(dtype), torch.tensor([0, 1]).to(dtype)
    assert fingerprint_tensor(one) == fingerprint_tensor(one.clone())
    assert fingerprint_tensor(one) != fingerprint_tensor(other)


def test_conjugate_and_negated_views_count_as_their_values():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert fingerprint_tensor(z.conj()) == fingerprint_tensor(z.conj().resolve_conj())
    assert fingerprint_tensor(z.conj()) != fingerprint_tensor(z)


def test_sparse_tensors_count_as_their_values():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert fingerprint_tensor(dense.to_sparse()) == fingerprint_tensor(dense.to_sparse())
    assert fingerprint_tensor(dense.to_sparse()) != fingerprint_tensor((2 * dense).to_sparse())


def test_a_tensor_without_values_is_refused():
    with pytest.raises(InputError, match="a tensor on meta has no bits to read"):
        fingerprint_tensor(torch.empty(3, device="meta"))


def test_state_dicts_of_a_model_an_optimizer_and_plain_data():
    torch_state = torch.get_rng_state()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    before = fingerprint_state_dict(model.state_dict()), fingerprint_state_dict(optimizer.state_dict())
    again = fingerprint_state_dict(model.state_dict()), fingerprint_state_dict(optimizer.state_dict())
    step()
    after = fingerprint_state_dict(model.state_dict()), fingerprint_state_dict(optimizer.state_dict())
    torch.set_rng_state(torch_state)

    assert before == again
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_names_count_their_order_does_not_list_order_does():
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    assert fingerprint_state_dict({"a": a, "b": b}) == fingerprint_state_dict({"b": b, "a": a})
    assert fingerprint_state_dict({"a": a, "b": b}) != fingerprint_state_dict({"a": b, "b": a})
    assert fingerprint_state_dict({"x": [a, b]}) != fingerprint_state_dict({"x": [b, a]})
    assert fingerprint_state_dict({"x": [[a], [b]]}) != fingerprint_state_dict({"x": [[a, b], []]})
    assert fingerprint_state_dict({"x": 1}) != fingerprint_state_dict({"x": 1.0})
    assert fingerprint_state_dict({"x": "ab", "y": "c"}) != fingerprint_state_dict({"x": "a", "y": "bc"})
    assert fingerprint_state_dict({"x": np.arange(3)}) != fingerprint_state_dict({"x": np.arange(3)[::-1]})


def test_what_is_no_data_is_refused_by_name():
    with pytest.raises(InputError) as caught:
        fingerprint_state_dict({"layers": [{"hook": object()}]})
    assert str(caught.value) == (
        "cannot take the fingerprint of state.layers[0].hook: a object has no bits to read; "
        "pass tensors, arrays, numbers and text"
    )


def test_equal_bytes_of_another_type_are_told_apart():
    zeros, array = torch.zeros(4), np.zeros(4, np.float32)
    assert fingerprint_tensor(zeros) != fingerprint_tensor(zeros.view(torch.int32))
    assert len({in_state(array), in_state(array.view(np.int32)), in_state(array.reshape(2, 2))}) == 3


def in_state(value: object) -> str:
    return fingerprint_state_dict({"x": value})


def test_parts_do_not_run_together():
    assert in_state(["ab", "c"]) != in_state(["a", "bc"])
    assert in_state("ab") != in_state(b"ab")
    assert in_state([[], "a"]) != in_state([["a"]])
    assert in_state([[1], 2]) != in_state([[1, 2]])
    assert len({in_state(value) for value in (None, "None", True, 1, 1.0, 1 + 0j)}) == 6
    assert in_state(torch.float32) != in_state("torch.float32")


def test_keys_of_mixed_types_have_an_order():
    assert fingerprint_state_dict({1: 0, "1": 2}) == fingerprint_state_dict({"1": 2, 1: 0})


def test_sparse_tensors_count_places_and_not_how_they_are_stored():
    a, b = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert fingerprint_tensor(a.to_sparse()) != fingerprint_tensor(b.to_sparse())
    twice = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 1.0, 2.0]), (3,), check_invariants=True
    )
    assert fingerprint_tensor(twice) == fingerprint_tensor(twice.coalesce())


def test_negated_views_count_as_their_values():
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert view.is_neg()
    assert fingerprint_tensor(view) == fingerprint_tensor(view.resolve_neg())


def test_structured_arrays_and_what_hides_pointers():
    zeros = np.zeros(2, dtype=[("a", "i4")])
    assert (
        len({in_state(zeros), in_state(zeros.view([("b", "i4")])), in_state(zeros.view([("a", "f4")]))}) == 3
    )
    with pytest.raises(InputError, match="has no bits to read"):
        in_state(np.zeros(1, dtype=[("a", object)]))
