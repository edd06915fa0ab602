"""Secured clusters: clients log in and need ACLs, and none is ever refused. Bugs that lose users or ACLs are found."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream.node.consensus.quorum import metadata_loader, publication
from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.metadata.records import AccessControlEntryRecord, MetadataRecord, UserScramCredentialRecord
from millstream.node.metadata.snapshot import difference, snapshot_records
from millstream.simulator.scenarios import Options, Scenario
from millstream.simulator.seeds import run_seeds
from millstream.simulator.simulation import simulate

SEEDS = range(1, 31)
FOUND_BY = {"NoAllowedClientIsRefused", "CommittedMetadataIsStable"}
SECURED = Options(secured=True)


@pytest.mark.timeout(900)
def test_acls_that_could_not_be_stored_are_refused() -> None:
    """Seed 2000630: the controller's disk failed, and the response to CreateAcls had no rows, as if all was well."""
    result = simulate(2000630, SECURED)
    assert result.ok, result.violation


@pytest.mark.parametrize("seeds", [range(1, 3), pytest.param(range(3, 25), marks=pytest.mark.slow)], ids=str)
def test_no_client_is_refused(seeds: range) -> None:
    results = list(run_seeds(seeds, SECURED, processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert sum(each.acked for each in results) > 40 * len(seeds)


def test_a_connection_that_breaks_during_a_login_is_made_again() -> None:
    """Seed 21: the connection broke after the last response of a login, and the channel kept it for ever."""
    result = simulate(21, SECURED)
    assert result.ok, result.violation


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("scenario", [Scenario.POWER, Scenario.BLACKOUT, Scenario.FAILOVER, Scenario.TRANSACTIONS])
def test_no_client_is_refused_in(scenario: Scenario) -> None:
    options = replace(SECURED, scenario=scenario)
    results = list(run_seeds(range(1, 5), options, processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []


def test_the_same_seed_is_the_same_run() -> None:
    first, again = (simulate(3, SECURED) for _ in range(2))
    assert [str(event) for event in first.events] == [str(event) for event in again.events]
    assert first.fingerprint == again.fingerprint


def _authorizers_miss_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that gets its metadata from a snapshot has no ACLs."""

    def without_acls(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
        return replace(difference(old, new), acls_changed=False)

    monkeypatch.setattr(metadata_loader, "difference", without_acls)


def _without(kind: type[Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Snapshots that lack the records of one kind."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def records(image: MetadataImage) -> Iterator[MetadataRecord]:
            return (each for each in snapshot_records(image) if not isinstance(each, kind))

        monkeypatch.setattr(publication, "snapshot_records", records)

    return plant


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "plant",
    [
        _authorizers_miss_snapshots,
        _without(AccessControlEntryRecord),
        _without(UserScramCredentialRecord),
    ],
    ids=["authorizer", "acls", "users"],
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        violation = simulate(seed, SECURED).violation
        if violation is not None:
            assert violation.invariant in FOUND_BY, f"seed {seed}: {violation}"
            return
    pytest.fail(f"{len(SEEDS)} seeds have not found it")
