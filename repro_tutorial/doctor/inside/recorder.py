"""Records every operator of PyTorch: a digest of what it was given and of what it made, and the line that asked."""

import contextlib
import math
import os
import sys
import threading
from collections import deque
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from repro_tutorial.doctor.inside import digests
from repro_tutorial.doctor.inside.process import here
from repro_tutorial.doctor.inside.streams import Book

REPEATS = 8  # further executions of a pure operator, to see whether it repeats
REPEATED_CALLS = 2  # the first so many calls of an operator with a shape are repeated
MOST_ITEMS = 2000  # numbers read with .item() that are noted, for the curves of a report
MOST_DRAWS = 50  # notes of draws, for each generator
LEAST_REPEATED = 4096  # elements; PyTorch does not part smaller work among threads

# Written whole, whatever was there before: what it held is no input.
OVERWRITTEN = (
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
    "fill_", "zero_", "copy_", "eye_", "set_", "resize_", "randperm", "_fused_", "out",
)  # fmt: skip
NOTHING_MADE = (
    "profiler::",
    "empty",
    "new_empty",
    "set_",
    "resize_",
    "is_",
    "size",
    "stride",
    "sym_",
    "record_stream",
)
SCRATCH = ("workspace", "reserve")  # outputs and arguments of such names hold anything
COLLECTIVES = ("c10d::", "_c10d_functional::")
DATA_FROM_OUTSIDE = ("lift_fresh", "lift")

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr


class Operator:
    """What is known of an operator from its schema: which arguments are inputs, which outputs hold results."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = func.name().removeprefix("aten::")
        base = self.name.split(".")[0]
        self.call = func._op
        # A collective may still be under way when its call returns: its result is digested by its first reader.
        self.collective = self.name.startswith(COLLECTIVES)
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        skipped = [
            is_written
            and (
                base.startswith("_fused_")
                or base in OVERWRITTEN
                or argument.is_out
                or (self.collective and "reduce_" not in base)
            )
            for argument, is_written in zip(schema.arguments, written, strict=True)
        ]
        self.skipped = {i for i, skip in enumerate(skipped) if skip}
        self.names = [argument.name for argument in schema.arguments]
        self.skipped |= {i for i, name in enumerate(self.names) if name.startswith(SCRATCH)}
        self.skipped_names = {self.names[i] for i in self.skipped}
        self.written = [i for i, is_written in enumerate(written) if is_written]
        aliases = [r.alias_info is not None for r in schema.returns]
        self.view = any(aliases) and not any(written) and base not in DATA_FROM_OUTSIDE
        self.nothing = base.startswith(NOTHING_MADE)
        self.empties = base in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
        self.returns_written = any(aliases) and any(written)
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.batch_norm = "batch_norm" in base and "backward" not in base
        self.pure = not any(written) and not any(aliases) and not self.random and not self.nothing
        self.accumulates = base in ("index_put_", "_index_put_impl_", "index_add_", "scatter_add_", "put_")
        # mkldnn's workspace is the fourth output and has no name in the schema
        self.results = {"mkldnn_rnn_layer": 3, "native_batch_norm": 3}.get(base)


class Recorder(TorchDispatchMode):
    """Pushed for each thread; stays for its whole life."""

    # Compiled regions stay compiled, and Dynamo does not trace us.
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled regions as they are."""
        return True

    def __init__(self, book: Book) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.book = book
        self.operators: dict[Any, Operator] = {}
        self.forward_sites: dict[int, str] = {}
        self.order: deque[int] = deque()
        self.last_states = dict(here.first_states)
        self.backward_site = ("", -1)
        self.repeated: dict[Any, int] = {}
        self.may_repeat = bool(here.settings.get("repeat"))
        self.fill = here.settings.get("fill")  # True, or the lines whose new memory is to be filled
        self.empties: set[str] = set()
        self._draws: dict[str, int] = {}
        self.items = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operator = self.operators.get(func)
        if operator is None:
            operator = self.operators[func] = Operator(func)
        if operator.view or operator.nothing:
            made = operator.call(*args, **kwargs)
            if operator.empties:
                self._unwritten(made)
            return made
        if here.busy():
            return operator.call(*args, **kwargs)
        self._look_at_generators()
        given = 0
        if operator.random:
            given = self._generator(operator, args, kwargs)
        given = self._digest_inputs(operator, args, kwargs, given)
        repeat = self.may_repeat and (operator.pure or operator.accumulates)
        before = self._to_repeat(operator, args) if repeat else None
        made = operator.call(*args, **kwargs)
        name = operator.name
        if operator.collective:
            out = 0
        elif (operator.written and not operator.returns_written) or operator.batch_norm:
            out = self._digest_written(operator, args, kwargs, digest_all(made, 0))
        else:
            out = self._digest_outputs(operator, made)
        site = self._site()
        self.book.event(name, site, given, out)
        if type(made) is float and self.items < MOST_ITEMS:
            self.items += 1
            self.book.note("item", site.split(" ")[0], made if math.isfinite(made) else repr(made))
        if before is not None:
            self._repeat(operator, (before, args, kwargs), made, site)
        return made

    # Parts of the above ---------------------------------------------------------------------------------

    def _unwritten(self, made: Any) -> None:
        """New memory that holds anything: noted where the program itself asks for it, and filled on request."""
        caller = sys._getframe(2)
        site = here.places.file(caller.f_code.co_filename)
        site = f"{site}:{caller.f_lineno}" if site else ""
        if site and site not in self.empties:
            self.empties.add(site)
            self.book.note("empty", site)
        if self.fill is True or (self.fill and site in self.fill):
            _fill(made)

    def _site(self) -> str:
        task = _task()
        if task == -1:
            site = here.places.event_site(2)
            number = _sequence() - 1
            if number not in self.forward_sites:
                self.order.append(number)
                if len(self.order) > 20_000:
                    self.forward_sites.pop(self.order.popleft(), None)
            self.forward_sites[number] = site
            return site
        if self.backward_site[1] != task:
            self.backward_site = (here.places.event_site(2), task)
        node = _node()
        forward = self.forward_sites.get(node._sequence_nr()) if node is not None else None
        return f"{forward} << {self.backward_site[0]}" if forward else self.backward_site[0]

    def _look_at_generators(self) -> None:
        last = self.last_states
        for name, look in here.states.items():
            state = look()
            if state != last.get(name):
                if name in last or state != here.first_states[name]:
                    self._drawn(name, state)
                last[name] = state

    def _drawn(self, generator: str, state: int) -> None:
        self._draws[generator] = self._draws.get(generator, 0) + 1
        if self._draws[generator] <= MOST_DRAWS:
            self.book.note("drawn", "", state, generator)

    def _generator(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        generator = kwargs.get("generator")
        for argument in args:
            if isinstance(argument, torch._C.Generator):
                generator = argument
        if generator is None:
            generator = torch.default_generator
        return digests.of_tensor(generator.get_state())

    @staticmethod
    def _digest_inputs(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], given: int) -> int:
        skipped = operator.skipped
        for index, argument in enumerate(args):
            if index not in skipped:
                given = digest_all(argument, given)
        for name, argument in kwargs.items():
            if name not in operator.skipped_names:
                given = digest_all(argument, given)
        return given

    @staticmethod
    def _digest_outputs(operator: Operator, made: Any) -> int:
        if operator.results is not None:
            made = made[: operator.results]
        return digest_all(made, 0)

    @staticmethod
    def _digest_written(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], out: int) -> int:
        for index in operator.written:
            if index < len(args):
                out = digest_all(args[index], out)
            else:
                out = digest_all(kwargs.get(operator.names[index]), out)
        if operator.batch_norm:  # its running statistics are written without the schema saying so
            for name in ("running_mean", "running_var"):
                if name in operator.names and operator.names.index(name) < len(args):
                    out = digest_all(args[operator.names.index(name)], out)
        return out

    def _to_repeat(self, operator: Operator, args: tuple[Any, ...]) -> Any:
        """What is needed to compute the same again, if that is due: the first argument's copy, or ()."""
        sizes = [a.numel() for a in args if type(a) in _PLAIN]
        sizes += [
            a.numel() for part in args if isinstance(part, list | tuple) for a in part if type(a) in _PLAIN
        ]
        if not sizes or max(sizes) < LEAST_REPEATED or (torch.get_num_threads() == 1 and args[0].is_cpu):
            return None
        key = (operator.name, tuple(sizes))
        count = self.repeated[key] = self.repeated.get(key, 0) + 1
        if count > REPEATED_CALLS:
            return None
        return args[0].clone() if operator.accumulates else ()

    def _repeat(self, operator: Operator, given: tuple[Any, Any, Any], made: Any, site: str) -> None:
        """Compute the same again and note whether the result varies."""
        before, args, kwargs = given
        results = {digest_all(made, 0)}
        for _ in range(REPEATS * 4 if operator.accumulates else REPEATS):
            if operator.accumulates:
                again = operator.call(before.clone(), *args[1:], **kwargs)
            else:
                again = operator.call(*args, **kwargs)
            results.add(self._digest_outputs(operator, again))
        if len(results) > 1:
            self.book.note("varies", site, len(results), operator.name)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def digest_all(value: Any, seed: int) -> int:
    """A digest of every tensor and number in `value`, on top of `seed`."""
    kind = type(value)
    if kind in _PLAIN:
        return digests.of_tensor(value, seed)
    if kind is list or kind is tuple:
        for part in value:
            seed = digest_all(part, seed)
        return seed
    if kind is float or kind is int or kind is bool:
        return digests.of_scalar(value, seed)
    return seed


def _fill(made: Any) -> None:
    """Give new memory one value for all: a number that shows."""
    if type(made) in _PLAIN and made.numel():
        made.fill_(0.5 if made.is_floating_point() else 1)


def torch_is_there(module: Any) -> None:
    """Begin to record in this thread, and in those that start from now on."""
    here.at_end.append(weights)
    watch_modules()
    steps()
    if here.settings.get("record", True):
        push()


def push() -> None:
    """Record in the calling thread."""
    recorder = Recorder(here.book())
    here.set_recorder(recorder)
    recorder.__enter__()  # type: ignore[no-untyped-call]


def watch_modules() -> None:
    """Keep weak hold of every module, so that the weights can be digested at the end."""
    import weakref

    original = torch.nn.Module.__init__
    seen: list[Any] = here.modules

    def begin(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        seen.append(weakref.ref(self))

    torch.nn.Module.__init__ = begin  # type: ignore[method-assign]


def steps() -> None:
    """Note every optimizer step, and end the program after so many as were asked for."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    most, taken = here.settings.get("steps"), 0

    def after(*_: Any) -> None:
        nonlocal taken
        taken += 1
        here.book().note("step", "", taken)
        if most and taken >= most and threading.current_thread() is threading.main_thread():
            sys.stdout.flush()
            os._exit(0)

    register_optimizer_step_post_hook(after)


def weights() -> None:
    """At the end of the process: an event for the weights that are still there."""
    digest, met = 0, set()
    here.set_busy(True)
    with contextlib.suppress(RuntimeError):
        for reference in here.modules:
            module = reference()
            if module is None:
                continue
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if type(tensor) in _PLAIN and id(tensor) not in met:
                    met.add(id(tensor))
                    digest = digests.of_tensor(tensor, digest)
    here.set_busy(False)
    if met and threading.current_thread() is threading.main_thread():
        here.book().event("weights", "", 0, digest)
