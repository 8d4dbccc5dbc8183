"""The command line: what every demo and every verb of ``python -m repro_tutorial`` have in common, and the verbs.

Exit codes: 0 reproduces, passes, or did its job; 1 does not; 2 could not tell, or the input was bad.
"""

import argparse
import io
import os
import re
import shutil
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from repro_tutorial.messages import (
    LANGUAGES,
    InputError,
    Transcript,
    catalog,
    default_language,
    os_problem,
    text,
)
from repro_tutorial.runs import Record, Run, check_new, dump, is_clock, read_runs

T = TypeVar("T")

# Options with a value that say where things lie or how they are told, not what is run.
UNRECORDED = ("--json", "--plot", "--lang", "--checkpoint", "--data-dir", "--mirror", "--save", "--from")

MOST_WORKERS = 32  # of a loader

PLOT_SUFFIXES = (".svg", ".png", ".pdf")


class _Help(argparse.HelpFormatter):
    """argparse's layout, wrapped by the columns that characters take: a Chinese one takes two."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in _wrapped(text, width - len(indent)))


def _wrapped(line: str, width: int) -> list[str]:
    """`line` in lines of at most `width` columns; breaks fall between words and between Chinese characters."""
    lines, used = [""], 0
    for piece in re.findall(r"[!-~]+\s*|.", " ".join(line.split())):  # a Latin word, or one character
        columns = sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in piece.rstrip())
        # A line does not begin with a closing mark.
        if used + columns > width and piece not in "，。；：、）":
            lines.append("")
            used = 0
        lines[-1] += piece
        used += columns + len(piece) - len(piece.rstrip())
    return [part.rstrip() for part in lines]


class Parser(argparse.ArgumentParser):
    """An argument parser that speaks the reader's language and raises its complaints as `InputError`."""

    def __init__(self, prog: str | None, lang: str, about: str) -> None:
        super().__init__(
            prog, None, text(about, lang), formatter_class=_Help, add_help=False, allow_abbrev=False
        )
        self.lang = lang
        self._optionals.title = text("cli.options", lang)
        self._positionals.title = text("cli.arguments", lang)
        self.option("-h", "--help", action="help")
        self.option("--lang", choices=LANGUAGES, default=lang)

    def option(self, *names: str, about: str | None = None, **settings: Any) -> None:
        """Add an argument; its help is the sentence ``cli.help_<name>`` unless `about` names another."""
        key = about or "cli.help_" + names[-1].lstrip("-").replace("-", "_")
        convert = settings.get("type")
        if convert is not None:
            settings["type"] = _in_language(convert, self.lang)
        self.add_argument(*names, help=text(key, self.lang), **settings)

    def format_usage(self) -> str:
        """The usage line, its first word in the reader's language."""
        return super().format_usage().replace("usage: ", text("cli.usage", self.lang), 1)

    def format_help(self) -> str:
        """The help, argparse's own words and colons in the reader's language."""
        colon = text("cli.colon", self.lang)
        shown = re.sub(r"^(\S+):$", rf"\1{colon}", super().format_help(), flags=re.MULTILINE)
        return shown.replace("usage: ", text("cli.usage", self.lang), 1)

    def parse_args(self, *given: Any, **settings: Any) -> Any:
        """As argparse does; two files to write may not be one."""
        options = super().parse_args(*given, **settings)
        paths = [value for value in vars(options).values() if isinstance(value, Path)]
        if len({path.absolute() for path in paths}) < len(paths):
            raise InputError("files.same", file=paths[0])
        return options

    def error(self, message: str) -> NoReturn:
        """Raise `message`, which argparse words in English, as an error in the reader's language."""
        raise InputError("cli.bad_arguments", problem=_translated(message, self.lang), prog=self.prog)


def _in_language(convert: Callable[[str], T], lang: str) -> Callable[[str], T]:
    """`convert` with its `InputError` in the form that argparse passes on."""

    def converted(given: str) -> T:
        try:
            return convert(given)
        except InputError as error:
            raise argparse.ArgumentTypeError(error.in_language(lang)) from error

    return converted


def _translated(message: str, lang: str) -> str:
    """argparse's complaint in `lang`, piece by piece; a piece that is not known stays as it is."""
    if lang == "en":
        return message
    for key, sentence in catalog(lang).items():
        if key.startswith("argparse."):
            message = re.sub(catalog("en")[key], sentence, message)
    return message


def read_seed(given: str) -> int:
    """A seed from the command line."""
    from repro_tutorial.seeding import check_seed

    return check_seed(int(given) if re.fullmatch(r"[+-]?\d+", given.strip()) else given)


def count(given: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"\+?\d+", given.strip()) or int(given) < 1:
        raise InputError("cli.bad_count", given=repr(given))
    return int(given)


def worker_count(given: str) -> int:
    """A number of worker processes for a loader, 0 for none."""
    if not given.strip().isdecimal() or int(given) > MOST_WORKERS:
        raise InputError("cli.bad_workers", given=repr(given), most=MOST_WORKERS)
    return int(given)


def new_file(given: str) -> Path:
    """The path of a file that can be made."""
    check_new(Path(given))
    return Path(given)


def new_plot(given: str) -> Path:
    """The path of a figure that can be made."""
    if Path(given).suffix.lower() not in PLOT_SUFFIXES:
        raise InputError("files.bad_figure", file=given, known=PLOT_SUFFIXES)
    return new_file(given)


def language(arguments: Sequence[str]) -> str:
    """The language that ``--lang`` asks for, or the locale's."""
    for name, value in zip(arguments, [*arguments[1:], ""], strict=False):
        asked = value if name == "--lang" else name.removeprefix("--lang=")
        if name.startswith("--lang") and asked in LANGUAGES:
            return asked
    return default_language()


def demo_parser(
    slug: str, argv: Sequence[str] | None, *, runs: int, seed: int | None = None, device: str = "auto"
) -> Parser:
    """The options that every demo has: seed, runs, device (each with the demo's default), plot, json, lang."""
    parser = Parser(f"{slug}.py", language(sys.argv[1:] if argv is None else argv), f"{slug}.about")
    about = None if seed is None else "cli.help_seed_fixed"
    parser.option("--seed", type=read_seed, metavar="N", default=seed, about=about)
    parser.option("--runs", type=count, metavar="N", default=runs)
    about = None if device == "auto" else "cli.help_device_fixed"
    parser.option("--device", choices=("auto", "cpu", "cuda", "mps"), default=device, about=about)
    parser.option("--plot", type=new_plot, metavar="FILE")
    parser.option("--json", type=new_file, metavar="FILE")
    return parser


def choose_device(name: str) -> str:
    """The device that ``--device`` means.

    Raises:
        InputError: this machine has no such device.
    """
    import torch

    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if present["cuda"] else "cpu"
    if not present[name]:
        raise InputError("cli.no_device", device=name)
    return name


def progress(steps: Iterable[T], about: str, lang: str, total: int | None = None) -> Iterator[T]:
    """`steps`, with a progress bar where the error stream is a terminal; `total` where they have no length."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from steps
        return
    from tqdm import tqdm

    yield from tqdm(steps, desc=text(about, lang), leave=False, total=total)


def judge_runs(out: Transcript, runs: Sequence[Run]) -> dict[str, Any]:
    """Say whether `runs` agree, where they part and how far in ``loss``; the same as results for a record."""
    from repro_tutorial.divergence import compare, distinct_outcomes

    results: dict[str, Any] = {"runs": len(runs), "different": distinct_outcomes(runs)}
    if len(runs) == 1:
        out.say("demo.one_run")
        return results
    divergences = [compare(runs[0], other) for other in runs[1:]]
    widest = max(divergences, key=lambda divergence: divergence.max_abs)
    results["divergence"] = widest.summary()
    partings = [one.first_step for one in divergences if one.first_step is not None]
    if results["different"] == 1:
        out.say("demo.identical", runs=len(runs))
    elif partings:
        out.say("demo.part", runs=len(runs), different=results["different"], step=min(partings))
        key = "demo.gap" if len(runs) == 2 else "demo.gap_to_first"
        out.say(key, gap=widest.max_abs, step=widest.max_abs_step)
    else:
        out.say("demo.weights_differ", runs=len(runs))
    return results


def make_record(
    slug: str,
    argv: Sequence[str] | None,
    options: argparse.Namespace,
    *,
    runs: Sequence[Run],
    results: Mapping[str, object],
    out: Transcript,
) -> Record:
    """What a demo did, as a record; written to the file that ``--json`` names, if it does.

    The record's command leaves out what does not change the runs, such as ``--json`` and ``--lang``, and
    with it the names of folders and hosts.
    """
    from repro_tutorial.environment import describe_environment

    record = Record(
        lesson=slug,
        command=" ".join(["python", f"demos/{slug}.py", *without_outputs(argv)]),
        recorded=_today(),
        environment=describe_environment(),
        runs=tuple(runs),
        results=results,
        transcript=tuple(out.lines),
    )
    if options.json:
        record.save(options.json)
    return record


def without_outputs(argv: Sequence[str] | None) -> list[str]:
    """The arguments of a demo less those that do not change its runs, such as ``--json`` and ``--lang``."""
    kept: list[str] = []
    arguments = list(sys.argv[1:] if argv is None else argv)
    while arguments:
        argument = arguments.pop(0)
        if argument in UNRECORDED:
            arguments.pop(0)
        elif not argument.startswith(tuple(f"{name}=" for name in UNRECORDED)):
            kept.append(argument)
    return kept


def _today() -> str:
    """The date of a record, which SOURCE_DATE_EPOCH may fix."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (date.fromtimestamp(int(epoch)) if epoch else date.today()).isoformat()


def run(main: Callable[[Sequence[str] | None], object], prog: str | None = None) -> int:
    """Call `main` as a program: its exit code, one clear line for a mistake, no traceback for Ctrl-C.

    1 means "does not reproduce", so that a fault of ours must not end with it: 2, after the traceback.
    """
    lang = language(sys.argv[1:])
    prog = prog or Path(sys.argv[0]).name
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that cannot show Chinese is no reason to stop
    try:
        result = main(None)
    except InputError as error:
        print(text("cli.error", lang, prog=prog, error=error.in_language(lang)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\n" + text("cli.interrupted", lang, prog=prog), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except OSError as error:  # the output is full, or closed
        problem = InputError("cli.no_output", problem=os_problem(error)).in_language(lang)
        print(text("cli.error", lang, prog=prog, error=problem), file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001  # reported whole; only its exit code is changed
        traceback.print_exc()
        return 2
    return result if isinstance(result, int) else 0


# The verbs ----------------------------------------------------------------------------------------------


def verbs(argv: Sequence[str] | None = None) -> int:
    """``python -m repro_tutorial VERB …``: run one verb; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    lang = language(arguments)
    parser = Parser("python -m repro_tutorial", lang, "cli.about")
    commands = {"list": _list, "env": _env, "compare": _compare, "doctor": _doctor}
    parser.option("verb", choices=tuple(commands))
    # Options before the verb are the parser's own; all after it is the verb's.
    place = next((i for i, argument in enumerate(arguments) if argument in commands), len(arguments))
    if not arguments:
        parser.print_help()
        return 2
    verb = parser.parse_args(arguments[: place + 1]).verb
    return commands[verb](arguments[place + 1 :], lang)


def _verb_parser(verb: str, lang: str) -> Parser:
    parser = Parser(f"python -m repro_tutorial {verb}", lang, f"cli.about_{verb}")
    parser.option("--json", action="store_true", about="cli.help_print_json")
    return parser


def _print_json(data: Any) -> None:
    print(dump(data), end="")


def _list(arguments: Sequence[str], lang: str) -> int:
    from repro_tutorial.lessons import find_root, load_lessons

    parser = _verb_parser("list", lang)
    parser.option("slug", nargs="?")
    options = parser.parse_args(arguments)
    lessons = load_lessons(find_root())
    if options.slug is not None:
        chosen = [lesson for lesson in lessons if lesson.slug == options.slug]
        if not chosen:
            known = [lesson.slug for lesson in lessons]
            raise InputError("lessons.unknown", slug=options.slug, known=known)
        lessons = tuple(chosen)
    if options.json:
        _print_json([asdict(one) | {"files": [f.as_posix() for f in one.files()]} for one in lessons])
        return 0
    width = max(40, shutil.get_terminal_size().columns - 22)
    for lesson in lessons:
        planned = text("lessons.planned", lang) if lesson.planned else ""
        first, *rest = _wrapped(f"{lesson.claim[lang]}{planned}", width)
        print(f"{lesson.slug:<22}{first}")
        for line in rest:
            print(" " * 22 + line)
        if options.slug is not None:
            for file in lesson.files():
                print(f"  {file.as_posix()}")
    return 0


def _env(arguments: Sequence[str], lang: str) -> int:
    from repro_tutorial.determinism import ineffective_switches
    from repro_tutorial.environment import describe_environment

    options = _verb_parser("env", lang).parse_args(arguments)
    environment = describe_environment()
    ineffective = ineffective_switches()
    if options.json:
        _print_json(environment | {"ineffective_switches": [asdict(one) for one in ineffective]})
        return 0
    for name, value in environment.items():
        if isinstance(value, dict):
            print(f"{name}:", *(f"  {key:<30}{part}" for key, part in value.items()), sep="\n")
        else:
            print(f"{name:<32}{', '.join(value) if isinstance(value, list) else value}")
    for one in ineffective:
        print("! " + one.explain(lang))
    return 0


def _compare(arguments: Sequence[str], lang: str) -> int:
    from repro_tutorial.divergence import compare

    parser = _verb_parser("compare", lang)
    parser.option("files", nargs="+", type=Path, metavar="FILE")
    parser.option("--metric", metavar="NAME")
    parser.option("--seeds", type=Path, nargs="+", metavar="FILE", default=[])
    options = parser.parse_args(arguments)
    a, b = _pair(options.files)
    seed_runs = [run for path in options.seeds for run in read_runs(path)]

    both = [name for name in a.metrics if name in b.metrics and a.metrics[name] and b.metrics[name]]
    clocks = sorted(name for name in a.metrics.keys() | b.metrics.keys() if is_clock(name))
    metrics = [options.metric] if options.metric else [name for name in both if name not in clocks]
    if not metrics:
        known = {"known_a": list(a.metrics), "known_b": list(b.metrics)}
        raise InputError("compare.no_shared_metric", a=a.name, b=b.name, **known)
    divergences = [compare(a, b, metric, seed_runs=seed_runs) for metric in metrics]
    fingerprints, unmatched = {}, []
    if not options.metric:
        shared = a.fingerprints.keys() & b.fingerprints.keys()
        fingerprints = {name: a.fingerprints[name] == b.fingerprints[name] for name in sorted(shared)}
        everything = a.metrics.keys() | b.metrics.keys() | a.fingerprints.keys() | b.fingerprints.keys()
        unmatched = sorted(everything - set(metrics) - set(clocks) - shared)
    if not all(one.bitwise_equal for one in divergences) or not all(fingerprints.values()):
        verdict, code = "differ", 1
    else:
        verdict, code = ("unmatched", 2) if unmatched else ("identical", 0)
    if options.json:
        summaries = [one.summary() | {"gap": one.gap} for one in divergences]
        left_out = {"clocks": clocks, "unmatched": unmatched}
        told = {"verdict": verdict, "runs": [a.name, b.name], "metrics": summaries}
        _print_json(told | {"fingerprints": fingerprints, "left_out": left_out})
        return code

    print(text("compare.runs", lang, a=a.name, b=b.name))
    for one in divergences:
        _tell(one, lang)
    for name, equal in fingerprints.items():
        print(text(f"compare.fingerprint_{'equal' if equal else 'differs'}", lang, name=name))
    if clocks and not options.metric:
        print(text("compare.clocks", lang, names=clocks))
    if unmatched:
        print(text("compare.left_out", lang, names=unmatched))
    print(text(f"compare.{verdict}", lang))
    return code


def _doctor(arguments: Sequence[str], lang: str) -> int:
    from repro_tutorial.doctor import report
    from repro_tutorial.doctor.diagnose import Examination
    from repro_tutorial.doctor.launch import Program, Workshop, check_program
    from repro_tutorial.processes import ended_by_signals

    parser = _verb_parser("doctor", lang)
    parser.option("-m", "--module", action="store_true")
    parser.option("--nproc-per-node", type=count, metavar="N")
    parser.option("--steps", type=count, metavar="N", about="cli.help_steps_doctor")
    parser.option("--timeout", type=seconds, metavar="SECONDS", default=600.0)
    parser.option("--budget", type=seconds, metavar="SECONDS", default=1800.0)
    parser.option("--fast", action="store_true")
    parser.option("--keep", type=new_file, metavar="FOLDER")
    parser.option("--html", type=new_file, metavar="FILE")
    parser.option("target", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.target:
        raise InputError("doctor.no_target")
    target, *given = options.target
    if given[:1] == ["--"]:
        given = given[1:]
    if target == "compare" and not options.module and len(given) == 2:
        from repro_tutorial.doctor import evidence

        return evidence.tell_comparison(Path(given[0]), Path(given[1]), lang, as_json=options.json)
    program = Program(
        ("-m", target) if options.module else (target,), tuple(given), Path.cwd(), options.nproc_per_node
    )
    check_program(program)
    bar = _running(lang)
    with ended_by_signals(), Workshop(program, timeout=options.timeout, steps=options.steps) as shop:
        found = Examination(shop, budget=options.budget, tell=bar, fast=options.fast).examine()
        bar(None)
        if options.keep or options.html:
            from repro_tutorial.doctor import evidence

            evidence.write(found, lang, folder=options.keep, page=options.html)
    if options.json:
        _print_json(report.as_json(found, lang))
    else:
        print("\n".join(report.as_text(found, lang)))
    return report.EXIT[found.verdict]


def seconds(given: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError("doctor.bad_seconds", given=repr(given))
    return value


def _running(lang: str) -> Callable[[int | None], None]:
    """Tells on a terminal which run is under way; None clears the line."""

    def tell(number: int | None) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            told = "" if number is None else text("doctor.running", lang, number=number)
            print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)

    return tell


def _tell(divergence: Any, lang: str) -> None:
    """What there is to say of one metric."""
    told = divergence.summary()
    if divergence.bitwise_equal:
        print(text("compare.metric_equal", lang, steps=len(divergence.steps), **told))
    elif divergence.max_abs == 0:
        print(text("compare.metric_sign", lang, **told))
    elif divergence.max_ulp is None:
        print(text("compare.metric_not_a_number", lang, **told))
    else:
        print(text("compare.metric_differs", lang, **told))
        if divergence.doubling_steps is not None:
            print(text("compare.growth", lang, steps=divergence.doubling_steps))
    if divergence.noise_ratio is not None:
        print(text("compare.noise", lang, ratio=divergence.noise_ratio, step=divergence.steps[-1]))


def _pair(paths: Sequence[Path]) -> tuple[Run, Run]:
    """The two runs to compare, named after their files: the first of each of two files, or the two of one."""
    if len(paths) > 2:
        raise InputError("compare.too_many_files", files=len(paths))
    if len(paths) == 2 and paths[0].absolute() == paths[1].absolute():
        raise InputError("compare.same_file", file=paths[0])
    runs = [
        (path, run) for path in paths for run in read_runs(path)[: 3 - len(paths) if len(paths) > 1 else None]
    ]
    if len(runs) != 2:
        raise InputError("compare.not_two_runs", file=paths[0], runs=len(runs))
    a, b = (
        replace(run, name=str(path) if run.name == path.name else f"{path}: {run.name}") for path, run in runs
    )
    return a, b
