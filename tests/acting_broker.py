"""Acting as a broker in tests: the proof that a broker sends to another, read from the metadata log on the disk."""

from pathlib import Path

from millstream.formats.records.record import read_batches
from millstream.node.metadata.records import RegisterBrokerRecord, decode_record
from millstream.node.server.request import BROKER_SOFTWARE
from tests.wire import Wire


def act_as_broker(wire: Wire, data_dir: Path) -> None:
    """Proves on this connection to be the broker of this data directory (`node/cluster/broker_proof.py`)."""
    wire.call("api_versions", 3, client_software_name=BROKER_SOFTWARE, client_software_version=broker_proof(data_dir))


def broker_proof(data_dir: Path) -> str:
    registrations = [
        record
        for file in sorted((data_dir / "__cluster_metadata-0").glob("*.log"))
        for header, records in read_batches(file.read_bytes())
        if not header.is_control
        for each in records
        if isinstance(record := decode_record(each.value or b""), RegisterBrokerRecord)
    ]
    return f"{registrations[-1].broker_id}.{registrations[-1].incarnation_id.hex}"
