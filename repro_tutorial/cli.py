"""The command line: what every demo and every verb of ``python -m repro_tutorial`` have in common, and the verbs.

Exit codes: 0 reproduces, passes, or did its job; 1 does not; 2 could not tell, or the input was bad.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from repro_tutorial.messages import (
    LANGUAGES,
    InputError,
    Transcript,
    catalog,
    default_language,
    text,
)
from repro_tutorial.runs import Record, Run, check_new, is_clock, read_runs

T = TypeVar("T")

PLOT_SUFFIXES = (".svg", ".png", ".pdf")


class Parser(argparse.ArgumentParser):
    """An argument parser that speaks the reader's language and raises its complaints as `InputError`."""

    def __init__(self, prog: str | None, lang: str, about: str) -> None:
        super().__init__(prog=prog, description=text(about, lang), add_help=False, allow_abbrev=False)
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
        """The help, its first word in the reader's language."""
        return super().format_help().replace("usage: ", text("cli.usage", self.lang), 1)

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


def seed(given: str) -> int:
    """A seed from the command line."""
    from repro_tutorial.seeding import check_seed

    return check_seed(int(given) if re.fullmatch(r"[+-]?\d+", given.strip()) else given)


def count(given: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"\+?\d+", given.strip()) or int(given) < 1:
        raise InputError("cli.bad_count", given=repr(given))
    return int(given)


def new_file(given: str) -> Path:
    """The path of a file that can be made."""
    check_new(Path(given))
    return Path(given)


def new_plot(given: str) -> Path:
    """The path of a figure that can be made."""
    if Path(given).suffix.lower() not in PLOT_SUFFIXES:
        raise InputError("files.bad_figure", file=given, known=", ".join(PLOT_SUFFIXES))
    return new_file(given)


def language(arguments: Sequence[str]) -> str:
    """The language that ``--lang`` asks for, or the locale's."""
    for name, value in zip(arguments, [*arguments[1:], ""], strict=False):
        asked = value if name == "--lang" else name.removeprefix("--lang=")
        if name.startswith("--lang") and asked in LANGUAGES:
            return asked
    return default_language()


def demo_parser(slug: str, argv: Sequence[str] | None, *, runs: int) -> Parser:
    """The options that every demo has: seed, runs (by default `runs`), device, plot, json, lang."""
    parser = Parser(f"{slug}.py", language(sys.argv[1:] if argv is None else argv), f"{slug}.about")
    parser.option("--seed", type=seed, metavar="N")
    parser.option("--runs", type=count, metavar="N", default=runs)
    parser.option("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
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


def progress(steps: Iterable[T], about: str, lang: str) -> Iterator[T]:
    """`steps`, with a progress bar where the error stream is a terminal."""
    if not sys.stderr.isatty():
        yield from steps
        return
    from tqdm import tqdm

    yield from tqdm(steps, desc=text(about, lang), leave=False)


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

    The record's command leaves out what does not change the runs: ``--json``, ``--plot``, ``--lang``.
    """
    from repro_tutorial.environment import describe_environment

    arguments = " ".join(sys.argv[1:] if argv is None else argv)
    arguments = re.sub(r"--(json|plot|lang)[= ]\S+ ?", "", arguments).strip()
    record = Record(
        lesson=slug,
        command=f"python demos/{slug}.py {arguments}".strip(),
        recorded=_today(),
        environment=describe_environment(),
        runs=tuple(runs),
        results=results,
        transcript=tuple(out.lines),
    )
    if options.json:
        record.save(options.json)
    return record


def _today() -> str:
    """The date of a record, which SOURCE_DATE_EPOCH may fix."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (date.fromtimestamp(int(epoch)) if epoch else date.today()).isoformat()


def run(main: Callable[[Sequence[str] | None], object], prog: str | None = None) -> int:
    """Call `main` as a program: its exit code, one clear line for a mistake, no traceback for Ctrl-C."""
    lang = language(sys.argv[1:])
    prog = prog or Path(sys.argv[0]).name
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
        return 0
    return result if isinstance(result, int) else 0


# The verbs ----------------------------------------------------------------------------------------------


def verbs(argv: Sequence[str] | None = None) -> int:
    """``python -m repro_tutorial VERB …``: run one verb; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    lang = language(arguments)
    parser = Parser("python -m repro_tutorial", lang, "cli.about")
    commands = {"list": _list, "env": _env, "compare": _compare}
    parser.option("verb", choices=tuple(commands))
    parser.option("rest", nargs=argparse.REMAINDER, about="cli.help_rest")
    # Options before the verb are the parser's own; all after it is the verb's.
    place = next((i for i, argument in enumerate(arguments) if argument in commands), len(arguments))
    verb = parser.parse_args(arguments[: place + 1]).verb
    return commands[verb](arguments[place + 1 :], lang)


def _verb_parser(verb: str, lang: str) -> Parser:
    parser = Parser(f"python -m repro_tutorial {verb}", lang, f"cli.about_{verb}")
    parser.option("--json", action="store_true", about="cli.help_print_json")
    return parser


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


def _list(arguments: Sequence[str], lang: str) -> int:
    from dataclasses import asdict

    from repro_tutorial.lessons import find_root, load_lessons

    parser = _verb_parser("list", lang)
    parser.option("slug", nargs="?")
    options = parser.parse_args(arguments)
    lessons = load_lessons(find_root())
    if options.slug is not None:
        chosen = [lesson for lesson in lessons if lesson.slug == options.slug]
        if not chosen:
            known = ", ".join(lesson.slug for lesson in lessons)
            raise InputError("lessons.unknown", slug=options.slug, known=known)
        lessons = tuple(chosen)
    if options.json:
        _print_json([asdict(one) | {"files": [f.as_posix() for f in one.files()]} for one in lessons])
        return 0
    for lesson in lessons:
        planned = text("lessons.planned", lang) if lesson.planned else ""
        print(f"{lesson.slug:<22}{lesson.claim[lang]}{planned}")
        if options.slug is not None:
            print(*(f"  {file.as_posix()}" for file in lesson.files()), sep="\n")
    return 0


def _env(arguments: Sequence[str], lang: str) -> int:
    from dataclasses import asdict

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
    a, b, names = _pair([(path, read_runs(path)) for path in options.files])
    seed_runs = [run for path in options.seeds for run in read_runs(path)]

    shared = [name for name in a.metrics if name in b.metrics]
    metrics = [options.metric] if options.metric else [name for name in shared if not is_clock(name)]
    if not metrics:
        known = {"known_a": ", ".join(a.metrics), "known_b": ", ".join(b.metrics)}
        raise InputError("compare.no_shared_metric", a=names[0], b=names[1], **known)
    left_out = sorted((a.metrics.keys() | b.metrics.keys()) - set(metrics)) if not options.metric else []
    divergences = [compare(a, b, metric, seed_runs=seed_runs) for metric in metrics]
    fingerprints = {
        name: a.fingerprints[name] == b.fingerprints[name]
        for name in a.fingerprints
        if name in b.fingerprints and not options.metric
    }
    same = all(one.bitwise_equal for one in divergences) and all(fingerprints.values())
    if options.json:
        summaries = [one.summary() | {"gap": one.gap} for one in divergences]
        verdict = "identical" if same else "differ"
        _print_json(
            {"verdict": verdict, "runs": names, "metrics": summaries, "fingerprints": fingerprints}
            | {"left_out": left_out}
        )
        return 0 if same else 1

    print(text("compare.runs", lang, a=names[0], b=names[1]))
    for one in divergences:
        key = "compare.metric_equal" if one.bitwise_equal else "compare.metric_differs"
        print(text(key, lang, steps=len(one.steps), **one.summary()))
        if one.doubling_steps is not None and not one.bitwise_equal:
            print(text("compare.growth", lang, steps=one.doubling_steps))
        if one.noise_ratio is not None:
            print(text("compare.noise", lang, ratio=one.noise_ratio, step=one.steps[-1]))
    for name, equal in fingerprints.items():
        print(text(f"compare.fingerprint_{'equal' if equal else 'differs'}", lang, name=name))
    if left_out:
        print(text("compare.left_out", lang, names=", ".join(left_out)))
    print(text("compare.identical" if same else "compare.differ", lang))
    return 0 if same else 1


def _pair(files: Sequence[tuple[Path, Sequence[Any]]]) -> tuple[Any, Any, list[str]]:
    """The two runs to compare, and what to call them: the first of each of two files, or the two of one."""
    if len(files) == 1:
        path, runs = files[0]
        if len(runs) != 2:
            raise InputError("compare.not_two_runs", file=path, runs=len(runs))
        return runs[0], runs[1], [f"{path}: {run.name}" for run in runs]
    if len(files) > 2:
        raise InputError("compare.too_many_files", files=len(files))
    return files[0][1][0], files[1][1][0], [f"{path}: {runs[0].name}" for path, runs in files]
