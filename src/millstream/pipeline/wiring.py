"""From names to a graph: every reference is looked up, steps are put in order, and what nobody uses is found."""

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from millstream.pipeline.flows import Flow, Following
from millstream.pipeline.model import Route, Sink, Source, Step, TopicSource
from millstream.pipeline.parts import Drafted, unknown_reference
from millstream.pipeline.problems import Place, Problems


@dataclass(slots=True)
class Wired:
    """The parts of a pipeline, joined."""

    steps: list[Step]
    sinks: list[Sink]
    flows: dict[str, Flow]


def wire(
    sources: list[Drafted[Source]], steps: list[Drafted[Step]], sinks: list[Drafted[Sink]], problems: Problems
) -> Wired:
    """Look up, put in order, follow; all that is wrong goes to `problems`."""
    givers = _givers(sources, steps, problems)
    routes = {step.part.name: step.part for step in steps if isinstance(step.part, Route)}
    _check_references(steps, sinks, givers, routes, problems)
    ordered = _in_order(steps, givers, problems)
    wiring = Following(problems)
    for source in sources:
        wiring.source(source)
    finished = [wiring.step(step) for step in ordered]
    for sink in sinks:
        wiring.sink(sink)
    if not problems.has_errors:  # after a wrong name, whatever it should have named looks unused
        _check_use(sources, steps, sinks, givers, problems)
    _check_groups(sources, steps, sinks, givers, problems)
    return Wired(finished, [sink.part for sink in sinks], wiring.flows)


def _givers(sources: list[Drafted[Source]], steps: list[Drafted[Step]], problems: Problems) -> dict[str, str]:
    """For each table's name, the source or step that gives it."""
    givers: dict[str, str] = {}
    places: dict[str, Place] = {}
    entries: list[tuple[str, str, Place]] = [(source.part.name, source.part.name, source.place) for source in sources]
    for step in steps:
        entries += [(name, step.part.name, step.place_for(name)) for name in step.part.gives]
        if isinstance(step.part, Route) and step.part.name in givers:
            entries.append((step.part.name, step.part.name, step.place))
    for name, giver, place in entries:
        if name in givers:
            problems.error(place, f"the name {name!r} is taken: line {places[name].line} has it too")
            continue
        givers[name] = giver
        places[name] = place
    return givers


def _check_references(
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    routes: dict[str, Route],
    problems: Problems,
) -> None:
    drafts: Iterable[Drafted[Step] | Drafted[Sink]] = (*steps, *sinks)
    for drafted in drafts:
        for word in drafted.refers_to:
            if word.text in givers or not word.text:
                continue
            if word.text in routes:
                branches = ", ".join(routes[word.text].gives)
                problems.error(
                    word.place, f"{word.text!r} is a route: its rows are in its branches; say one of {branches}"
                )
            else:
                problems.error(word.place, unknown_reference(word.text, list(givers)))


def _in_order(steps: list[Drafted[Step]], givers: dict[str, str], problems: Problems) -> list[Drafted[Step]]:
    """Each step after those it reads; the file's order where that leaves a choice."""
    by_name = {step.part.name: step for step in steps}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for step in steps:
        sorter.add(step.part.name, *(givers[name] for name in step.part.reads if givers.get(name) in by_name))
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = min(range(len(circle) - 1), key=lambda index: by_name[circle[index]].place)
        turned = [*circle[first:-1], *circle[:first], circle[first]]
        problems.error(
            by_name[turned[0]].place,
            "these steps wait for each other: " + " <- ".join(repr(name) for name in turned) + "; one of them must read"
            " something else",
        )
        return []


def reached_from(names: Iterable[str], parts: Iterable[Step], givers: dict[str, str]) -> set[str]:
    """All tables that are read, directly or not, to make `names`; these included."""
    by_name = {part.name: part for part in parts}
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        giver = by_name.get(givers.get(name, ""))
        if giver is not None:
            waiting.extend(giver.reads)
    return found


def _check_use(
    sources: list[Drafted[Source]],
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """What no sink has a use for is not an error, but hardly meant."""
    parts = [step.part for step in steps]
    dead = [step.part.reads[0] for step in steps if isinstance(step.part, Route) and step.part.reads]
    used = reached_from([sink.part.reads for sink in sinks], parts, givers)
    used |= reached_from([name for name in dead if givers.get(name)], parts, givers) if sinks else set()
    for source in sources:
        if source.part.name not in used:
            problems.warning(source.place, f"source {source.part.name!r} is not used by any sink")
    for step in steps:
        unused = [name for name in step.part.gives if name not in used]
        if isinstance(step.part, Route):
            for name in unused:
                problems.warning(step.place_for(name), f"no sink takes the rows of branch {name!r}; they go nowhere")
        elif unused:
            problems.warning(step.place, f"step {step.part.name!r} is not used by any sink")


def _check_groups(
    sources: list[Drafted[Source]],
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """Two queries that commit to one group would overwrite each other's progress."""
    parts = [step.part for step in steps]
    for source in sources:
        if not isinstance(source.part, TopicSource) or source.part.group is None:
            continue
        readers = [
            sink.part.name for sink in sinks if source.part.name in reached_from([sink.part.reads], parts, givers)
        ]
        if len(readers) > 1:
            problems.error(
                source.place_for("group"),
                f"the group {source.part.group!r} would have the progress of {len(readers)} sinks "
                f"({', '.join(readers)}); remove `group`, and each has one of its own",
            )
