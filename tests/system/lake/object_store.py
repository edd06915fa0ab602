"""An S3-compatible store on loopback, for tests of tables in one."""

import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

moto_server = pytest.importorskip("moto.server", reason="pip install 'moto[server]'")


def _one_at_a_time(app: Any) -> Any:
    """Moto looks whether an object is there, and then writes it: two who write the same at once would both be first."""
    lock = threading.Lock()

    def respond(environ: Any, start_response: Any) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return respond


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """A store with a bucket `lake`, as options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import boto3
        from werkzeug.serving import make_server

        app = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
        server = make_server("127.0.0.1", 0, _one_at_a_time(app), threaded=True)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="secret",
        )
        client.create_bucket(Bucket="lake")
        client.close()
    yield {"s3.endpoint": endpoint, "s3.access-key": "test", "s3.secret-key": "secret"}
    server.shutdown()
    serving.join()
    server.server_close()
