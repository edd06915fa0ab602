"""`millstream settings`."""

from tests.integration.cli.conftest import Run


def test_every_setting_with_its_meaning(offline: Run) -> None:
    found = {setting["name"]: setting for setting in offline("settings", "--json").json()}
    assert found["log.segment.bytes"]["default"] == "1073741824"
    assert all(setting["meaning"] and setting["effect"] for setting in found.values())
    everything = offline("settings", "--all", "--json").json()
    assert len(everything) > len(found)


def test_settings_of_topics_name_their_synonyms(offline: Run) -> None:
    found = {setting["name"]: setting for setting in offline("settings", "--topic", "--json").json()}
    assert "log.segment.bytes" in found["segment.bytes"]["synonyms"]


def test_settings_are_searched_by_a_word(offline: Run) -> None:
    lines = offline("settings", "retention.ms").out.splitlines()
    assert lines[0].split() == ["setting", "default", "type", "meaning"]
    assert all("retention.ms" in line for line in lines[1:])
    assert offline("settings", "nonsense").code == 4
