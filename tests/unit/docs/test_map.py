"""The map of the files is the one the modules give, and every module says what it is for."""

from tools import generate_map


def test_the_map_is_up_to_date() -> None:
    assert generate_map.TARGET.read_text() == generate_map.render(), "run python tools/generate_map.py"


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in generate_map.SOURCE.rglob("*.py") if not generate_map.first_sentence(path)]
    assert not silent
