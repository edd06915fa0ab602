"""An S3-compatible store on loopback, for tests of tables in one."""

import warnings
from collections.abc import Iterator

import pytest

moto_server = pytest.importorskip("moto.server", reason="pip install 'moto[server]'")


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """A store with a bucket `lake`, as options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import boto3

        server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
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
    server.stop()
