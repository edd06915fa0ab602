"""A Kerberos realm for tests: a KDC of its own on a free port, with its principals and their keytabs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.testing.node_process import free_ports
from tests.waiting import TIMEOUT_SECONDS, until

REALM = "MILLSTREAM.TEST"


class Realm:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports(1)[0]
        self.config = directory / "krb5.conf"
        profile = directory / "kdc.conf"
        # Without names of DNS: the principal of a host is as the client wrote the host.
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_realm = false\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        profile.write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{self.port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n  acl_file = {directory}/kadm5.acl\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(profile),
            "KRB5RCACHEDIR": str(directory),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
        }

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self) -> Iterator[Realm]:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-the-database")
        with open(self.directory / "kdc.out", "wb") as said:
            process = subprocess.Popen(
                ["krb5kdc", "-n"], env={**os.environ, **self.environment}, stdout=said, stderr=subprocess.STDOUT
            )
        try:
            until(self._is_reachable, "the KDC does not listen")
            yield self
        finally:
            process.terminate()
            process.wait(TIMEOUT_SECONDS)

    def _is_reachable(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def keytab(self, principal: str) -> Path:
        """A new principal with a random key, in a file."""
        path = self.directory / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path


def login_module(keytab: Path, principal: str, more: str = "") -> str:
    """A JAAS configuration, as Kafka's documentation writes it."""
    return (
        f'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="{keytab}" '
        f'principal="{principal}@{REALM}" {more};'
    )
