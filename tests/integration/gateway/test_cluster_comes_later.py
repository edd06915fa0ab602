"""A gateway whose cluster is not there yet: it says so, refuses to guess, and goes on by itself."""

import time

import pytest

from millstream.gateway import server
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.conftest import Caller

pytestmark = pytest.mark.timeout(300)


def test_it_starts_before_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        address = broker.bootstrap_servers
        monkeypatch.setattr(server, "_START_TIMEOUT_SECONDS", 60.0)
        with Gateway(GatewayOptions(address, timeout_s=30)) as first:
            schema_id = Caller(first.address)("POST", "/subjects/s/versions", {"schema": '"string"'}).json["id"]
        broker.stop()
        monkeypatch.setattr(server, "_START_TIMEOUT_SECONDS", 0.3)
        with Gateway(GatewayOptions(address, timeout_s=1)) as gateway:
            call = Caller(gateway.address)
            assert call("GET", "/livez").status == 200
            away = call("GET", "/readyz")
            assert away.status == 503 and "not ready: " in away.json["message"]
            for path in ("/subjects", "/subjects/s/versions/1", f"/schemas/ids/{schema_id}"):
                response = call("GET", path)
                assert response.status >= 500, f"{path}: nothing is known, so nothing can be said not to exist"
                assert "not been read yet" in response.json["message"]
            broker.start()
            assert broker.bootstrap_servers == address
            while call("GET", "/readyz").status != 200:
                time.sleep(0.1)
            assert call("GET", "/subjects").json == ["s"]
            assert call("POST", "/subjects/s/versions", {"schema": '"string"'}).json["id"] == schema_id


def test_a_topic_that_will_not_do_is_told_at_once(broker: EmbeddedBroker) -> None:
    import millstream
    from millstream.registry.errors import RegistryError

    with millstream.connect(broker.bootstrap_servers) as client:
        client.create_topic("wide-schemas", 2)
    with pytest.raises(RegistryError, match="2 partitions"):
        Gateway(GatewayOptions(broker.bootstrap_servers, schemas_topic="wide-schemas")).start()
