"""What was found, told: as JSON and in words."""

from collections.abc import Iterator
from typing import Any

from repro_tutorial.doctor.compare import Difference
from repro_tutorial.doctor.diagnose import Report
from repro_tutorial.doctor.kinds import LESSONS, Cause, at
from repro_tutorial.messages import catalog, text

EXIT = {"reproduces": 0, "differs": 1, "unknown": 2}
MOST_LINES = 3  # of printed differences that are shown


def as_json(report: Report, lang: str) -> dict[str, Any]:
    """The report as JSON's own types; `advice`, `what` and `reason` are sentences in `lang`."""
    return {
        "verdict": report.verdict,
        "program": report.program,
        "runs": report.runs,
        "reason": None
        if report.reason is None
        else text(report.reason["key"], lang, **report.reason["values"]),
        "first_difference": None if report.first is None else _difference(report.first, lang),
        "causes": [cause.as_json() | {"advice": advice(cause, lang)} for cause in report.causes],
        "harmless": list(report.harmless),
        "printed": [list(pair) for pair in report.printed[:MOST_LINES]],
        "rare": report.rare,
        "out_of_time": report.out_of_time,
    }


def _difference(first: Difference, lang: str) -> dict[str, Any]:
    file, line = at(first.site)
    return {
        "process": first.role,
        "event": first.index,
        "step": first.step,
        "operator": first.operator,
        "file": file,
        "line": line,
        "stack": stack(first.site),
        "kind": first.kind,
        "what": text(f"doctor.what_{first.kind}", lang),
    }


def stack(site: str) -> list[str]:
    """The lines that led to a place, innermost first."""
    return [line for part in site.split(" << ") for line in part.split(" <- ") if line]


SEED_CALLS = {"python": "random.seed(0)", "numpy": "numpy.random.seed(0)", "torch": "torch.manual_seed(0)"}


def advice(cause: Cause, lang: str) -> str:
    """What to change, in words."""
    generator = "random" if cause.generator == "python" else cause.generator
    key = (
        "doctor.advice_unseeded"
        if cause.kind.removeprefix("unseeded_") in SEED_CALLS
        else f"doctor.advice_{cause.kind}"
    )
    seeded = SEED_CALLS.get(cause.generator) or SEED_CALLS["torch"]
    return text(key, lang, generator=generator or "torch", seeded=seeded)


def as_text(report: Report, lang: str) -> Iterator[str]:
    """The report line by line, verdict first."""
    yield text(f"doctor.verdict_{report.verdict}", lang, program=report.program, runs=report.runs)
    if report.reason is not None:
        yield text(report.reason["key"], lang, **report.reason["values"])
    if report.rare:
        yield text("doctor.rare", lang)
    if report.first is not None:
        yield from where(report.first, lang)
    elif report.printed and report.verdict == "differs":
        yield text("doctor.printed", lang)
        yield from (
            f"  {side} {line}"
            for pair in report.printed[:MOST_LINES]
            for side, line in zip("12", pair, strict=True)
        )
    for cause in report.causes:
        yield from why(cause, lang)
    if report.verdict == "differs" and not report.causes:
        yield text("doctor.no_cause", lang)
    if report.harmless:
        kinds = [text(f"doctor.reads_{kind}", lang) for kind in report.harmless]
        yield text("doctor.harmless", lang, kinds=kinds)
    if report.out_of_time:
        yield text("doctor.out_of_time", lang)
    if report.verdict == "reproduces":
        yield text("doctor.no_proof", lang)


def where(first: Difference, lang: str) -> Iterator[str]:
    """Where the first difference lies, and what it is."""
    file, line = at(first.site)
    place = f"{file}:{line}" if file else "—"
    yield text(
        "doctor.where", lang, step=first.step + 1, operator=first.operator, place=place, process=first.role
    )
    for one in stack(first.site)[1:]:
        yield f"    {one}"
    yield text(f"doctor.what_{first.kind}", lang)


def why(cause: Cause, lang: str) -> Iterator[str]:
    """A cause, what to do about it, and the lesson that explains it."""
    place = f"{cause.file}:{cause.line}" if cause.file else "—"
    key = "doctor.cause_proved" if cause.proved else "doctor.cause_guessed"
    kind = catalog(lang)[f"doctor.kind_{cause.kind}"]
    if cause.generator:
        kind += f" ({cause.generator})" if lang == "en" else f"（{cause.generator}）"
    yield text(key, lang, place=place, kind=kind)
    yield "  " + advice(cause, lang)
    yield "  " + text("doctor.lesson", lang, slug=LESSONS[cause.kind])
