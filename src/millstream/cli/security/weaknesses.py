"""Weak settings of a node: `millstream security check`."""

import datetime
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from millstream.common.pkcs12 import looks_like_pkcs12
from millstream.common.secret_references import has_reference
from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import broker_setting
from millstream.config.exposure import is_loopback, open_listeners
from millstream.config.loading import parse_properties
from millstream.config.table import protection, ssl

_SOON = datetime.timedelta(days=30)
_STORES = ("ssl.keystore.location", "ssl.truststore.location")


def weaknesses(path: str, config: BrokerConfig) -> list[str]:
    """What is weak in the settings, each with the next step."""
    return [*_listeners(config), *_authorization(config), *_tls(config), *_files(path, config), *_audit(config)]


def _listeners(config: BrokerConfig) -> Iterator[str]:
    for listener in open_listeners(config):
        yield (
            f"listener {listener} can be reached from other machines without authentication: use SASL_SSL, or SSL with"
            f" listener.name.{listener.name.lower()}.ssl.client.auth=required"
        )
    for listener in (*config.listeners, *config.controller_listeners):
        if listener.security_protocol == "SASL_PLAINTEXT" and not is_loopback(listener.host):
            yield f"listener {listener} is not encrypted, so others can read records and passwords: use SASL_SSL"
        own = config.listener(listener.name)
        if own.uses_tls and own[ssl.SSL_ENDPOINT_IDENTIFICATION_ALGORITHM] == "":
            yield (
                f"listener {listener}: ssl.endpoint.identification.algorithm is empty, so this node accepts any host"
                " with a valid certificate: remove the setting"
            )


def _authorization(config: BrokerConfig) -> Iterator[str]:
    if not config.values.get("authorizer.class.name"):
        yield (
            "authorizer.class.name is not set, so every user may do everything: set it to"
            " org.apache.kafka.metadata.authorizer.StandardAuthorizer, and super.users to the administrators and nodes"
        )
    if config.values.get("allow.everyone.if.no.acl.found"):
        yield "allow.everyone.if.no.acl.found=true: topics without ACLs are open to every user: set it to false"
    for user in str(config.values.get("super.users") or "").split(";"):
        if user.strip() in ("User:ANONYMOUS", "User:*"):
            yield f"super.users has {user.strip()}, so clients without authentication may do everything: remove it"


def _tls(config: BrokerConfig) -> Iterator[str]:
    old = [each for each in config.values.get("ssl.enabled.protocols") or () if each in ("TLSv1", "TLSv1.1", "SSLv3")]
    if old:
        yield f"ssl.enabled.protocols has {', '.join(old)}, which are broken: use TLSv1.2,TLSv1.3"
    for name in _STORES:
        path = config.values.get(name)
        if path:
            yield from _certificates(name, path)


def _certificates(name: str, path: str) -> Iterator[str]:
    from cryptography import x509

    try:
        content = Path(path).read_bytes()
    except OSError as error:
        yield f"{name}={path}: {(error.strerror or str(error)).lower()}"
        return
    if looks_like_pkcs12(content) or b"BEGIN CERTIFICATE" not in content:
        return
    now = datetime.datetime.now(datetime.UTC)
    for certificate in x509.load_pem_x509_certificates(content):
        left = certificate.not_valid_after_utc - now
        if left < _SOON:
            said = "has expired" if left.total_seconds() < 0 else f"expires in {left.days} days"
            yield f"{name}={path}: the certificate of {certificate.subject.rfc4514_string()} {said}: replace it"


def _files(path: str, config: BrokerConfig) -> Iterator[str]:
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    secret = [item.name for item in parse_properties(text, path) if _is_secret(item.name, item.value)]
    if secret and _others_can_read(path):
        yield f"{path} has {', '.join(secret)} and can be read by other users: chmod 600 {path}, or use ${{file:…}}"
    key_store = config.values.get("ssl.keystore.location")
    if key_store and os.path.exists(key_store) and _others_can_read(key_store):
        yield f"{key_store} has the key of this node and can be read by other users: chmod 600 {key_store}"


def _is_secret(name: str, value: str) -> bool:
    setting = broker_setting(name)
    return setting is not None and setting.sensitive and bool(value.strip()) and not has_reference(value)


def _others_can_read(path: str) -> bool:
    return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _audit(config: BrokerConfig) -> Iterator[str]:
    if not config[protection.MILLSTREAM_AUDIT_ENABLE]:
        name = protection.MILLSTREAM_AUDIT_ENABLE.name
        yield f"{name}=false: there is no record of refusals and administration: set it to true"
    if "User:ANONYMOUS" in protection.principals_of(config[protection.MILLSTREAM_AUDIT_GATEWAYS]):
        name = protection.MILLSTREAM_AUDIT_GATEWAYS.name
        yield f"{name} has User:ANONYMOUS: any client without authentication can report events of a gateway"
