"""The sticky assignor of streams groups: what every assignment must be, and what a change may move."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.node.groups.core.streams.assignor import MemberSpec, SubtopologySpec, assign
from millstream.node.groups.core.streams.tasks import Tasks, each
from tests.examples import examples

SUBTOPOLOGIES = st.dictionaries(
    st.sampled_from(["0", "1", "2", "3"]),
    st.builds(SubtopologySpec, st.integers(1, 9), st.booleans()),
    min_size=1,
)
PROCESSES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def members_of(processes: list[int], before: dict[str, Tasks] | None = None) -> list[MemberSpec]:
    """So many members in each process, with their last targets."""
    ids = [
        (f"m{process}-{number}", f"p{process}") for process, count in enumerate(processes) for number in range(count)
    ]
    return [MemberSpec(member, process, (before or {}).get(member, Tasks())) for member, process in ids]


def check(
    members: list[MemberSpec], subtopologies: dict[str, SubtopologySpec], standbys: int, targets: dict[str, Tasks]
) -> None:
    tasks = [(name, number) for name, spec in subtopologies.items() for number in range(spec.task_count)]
    stateful = {task for task in tasks if subtopologies[task[0]].is_stateful}
    active = Counter(task for target in targets.values() for task in each(target.active))
    assert active == Counter(tasks)
    assert set(targets) == {member.id for member in members}
    process_of = {member.id: member.process_id for member in members}
    replicas: dict[tuple[str, int], list[str]] = {task: [] for task in tasks}
    for member_id, target in targets.items():
        for role in target:
            for task in each(role):
                replicas[task].append(process_of[member_id])
    wanted = 1 + min(standbys, len(set(process_of.values())) - 1)
    for task, processes in replicas.items():
        assert len(processes) == len(set(processes)) == (wanted if task in stateful else 1)
    for counted in (set(tasks), stateful):
        numbers = [sum(task in counted for task in each(target.active)) for target in targets.values()]
        assert max(numbers) - min(numbers) <= 1


@settings(max_examples=examples(200), deadline=None)
@given(PROCESSES, SUBTOPOLOGIES, st.integers(0, 3))
def test_every_task_has_one_member_and_its_standbys(
    processes: list[int], subtopologies: dict[str, SubtopologySpec], standbys: int
) -> None:
    members = members_of(processes)
    check(members, subtopologies, standbys, assign(members, subtopologies, standbys))


@settings(max_examples=examples(200), deadline=None)
@given(PROCESSES, PROCESSES, SUBTOPOLOGIES, st.integers(0, 2))
def test_an_assignment_after_another(
    before: list[int], after: list[int], subtopologies: dict[str, SubtopologySpec], standbys: int
) -> None:
    members = members_of(before)
    targets = assign(members, subtopologies, standbys)
    again = assign(members_of(before, targets), subtopologies, standbys)
    assert {name: target.active for name, target in again.items()} == {
        name: target.active for name, target in targets.items()
    }
    changed = members_of(after, targets)
    check(changed, subtopologies, standbys, assign(changed, subtopologies, standbys))


def test_a_member_that_joins_takes_only_its_share() -> None:
    subtopologies = {"0": SubtopologySpec(8, True)}
    first = assign(members_of([1, 1]), subtopologies, 0)
    after = assign(members_of([1, 1, 1], first), subtopologies, 0)
    kept = sum(
        len(target.active["0"] & first[member].active["0"]) for member, target in after.items() if member in first
    )
    assert kept == 8 - len(after["m2-0"].active["0"])


def test_a_task_moves_to_its_standby() -> None:
    subtopologies = {"0": SubtopologySpec(6, True)}
    first = assign(members_of([1, 1, 1]), subtopologies, 1)
    left = [spec for spec in members_of([1, 1, 1], first) if spec.id != "m0-0"]
    after = assign(left, subtopologies, 1)
    for task in each(first["m0-0"].active):
        owner = next(member for member, target in after.items() if task in set(each(target.active)))
        assert task in set(each(first[owner].standby))


def test_a_process_with_more_members_gets_more_tasks() -> None:
    targets = assign(members_of([3, 1]), {"0": SubtopologySpec(8, True)}, 0)
    assert [len(targets[member].active["0"]) for member in ("m0-0", "m0-1", "m0-2", "m1-0")] == [2, 2, 2, 2]


def test_without_members_there_are_no_targets() -> None:
    assert assign([], {"0": SubtopologySpec(3, False)}, 1) == {}
