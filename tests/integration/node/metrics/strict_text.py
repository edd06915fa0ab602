"""A strict reader of Prometheus' text format 0.0.4: it refuses what a lenient one would pass over.

Each family once, all of its lines together behind HELP and TYPE; labels quoted and escaped properly; histograms whole
and growing; no sample twice.
"""

import math
import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
Labels = tuple[tuple[str, str], ...]


@dataclass
class Parsed:
    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @property
    def label_names(self) -> set[str]:
        return {name for _, labels in self.samples for name, _ in labels}


def parse(text: str) -> dict[str, Parsed]:
    assert text.endswith("\n"), "the last line ends like all others"
    families: dict[str, Parsed] = {}
    current: Parsed | None = None
    name = help_text = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help_text = line.removeprefix("# HELP ").partition(" ")
            assert help_text, f"{name} is not explained"
            current = None
        elif line.startswith("# TYPE "):
            typed, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert typed == name and kind in ("counter", "gauge", "histogram"), line
            assert name not in families, f"{name} appears twice"
            current = families[name] = Parsed(kind, help_text)
        else:
            assert current is not None, f"a sample without HELP and TYPE: {line}"
            _take(current, name, line)
    for name, family in families.items():
        assert family.samples, f"{name} has no samples"
        assert (family.kind == "counter") == name.endswith("_total"), f"{name} is a {family.kind}"
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def _take(family: Parsed, name: str, line: str) -> None:
    found = _NAME.match(line)
    assert found is not None, line
    sample, rest = found.group(), line[found.end() :]
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert sample in {name + ending for ending in endings}, f"{sample} stands among the samples of {name}"
    labels: list[tuple[str, str]] = []
    if rest.startswith("{"):
        rest = rest[1:]
        while not rest.startswith("}"):
            label = _LABEL.match(rest)
            assert label is not None, f"not a label: {rest!r}"
            labels.append((label[1], re.sub(r'\\\\|\\"|\\n', lambda escape: _ESCAPES[escape[0]], label[2])))
            rest = rest[label.end() :].removeprefix(",")
        rest = rest[1:]
    assert rest.startswith(" "), line
    key = sample, tuple(sorted(labels))
    assert key not in family.samples, f"twice: {line}"
    assert len({label for label, _ in labels}) == len(labels), line
    value = float(rest[1:])
    assert value >= 0 or family.kind == "gauge", line
    family.samples[key] = value


def _check_histogram(name: str, family: Parsed) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            bound = next(float(text) for label, text in labels if label == "le")
            series.setdefault(tuple(each for each in labels if each[0] != "le"), []).append((bound, value))
    assert series
    for labels, buckets in series.items():
        assert buckets == sorted(buckets), f"{name}{labels}: bounds or counts do not grow"
        assert buckets[-1][0] == math.inf and buckets[-1][1] == family.samples[f"{name}_count", labels]
        assert (f"{name}_sum", labels) in family.samples
