"""Why Spark did not start: masters that cannot be, and what of Java's and the launcher's words people should see."""

import os
import re


class SparkStartError(Exception):
    """Spark did not start; the text says why and what to do."""


def is_embedded(master: str) -> bool:
    """`local`, `local[2]`, `local[*, 3]`; but not the host of that name."""
    return re.fullmatch(r"local(\[.*\])?|local-cluster\[.*\]", master) is not None


_MASTERS = "spark://HOST:7077, yarn, k8s://https://HOST:6443 or local[N]"


def refuse_master(master: str) -> None:
    """What the launcher would refuse with a text for its own command line."""
    if not (is_embedded(master) or re.match(r"spark://|k8s://|yarn(-client)?$", master)):
        raise SparkStartError(f"--master {master}: write {_MASTERS}")
    if master.startswith("yarn") and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise SparkStartError(
            f"--master {master}: set HADOOP_CONF_DIR (or YARN_CONF_DIR) to the directory with the cluster's "
            "core-site.xml and yarn-site.xml"
        )


def last_word(log_file: str | os.PathLike[str], start: int) -> str:
    """What the launcher gave as its reason."""
    with open(log_file, "rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    reasons = [line.strip() for line in lines if re.search(r"\bError: |Exception: ", line)]
    return f": {reasons[-1]}" if reasons else ""


_ADVICE = {
    "container image": "give --conf spark.kubernetes.container.image=…, an image with Spark and millstream[spark]",
    "nvalid master URL": f"write {_MASTERS}",
    "All masters are unresponsive": "is a master there, of this version of Spark, and reachable from here?",
}


def reason_of(error: BaseException) -> str:
    """What went wrong, and what that came from, out of a Java exception with its traces."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.$]*(Exception|Error): ", line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = (telling or lines or [type(error).__name__])[0]
    reason = f"{first} ({causes[-1]})" if causes else first
    return reason + next((f" ({advice})" for known, advice in _ADVICE.items() if known in reason), "")
