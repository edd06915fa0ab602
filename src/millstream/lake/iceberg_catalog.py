"""The catalog an Iceberg table is found in: by default a SQLite file beside the table, or any that pyiceberg knows.

`path=/lake/orders` alone means the table `default.orders` in `/lake/millstream-catalog.db`, so all tables of one
directory share a catalog. `catalog.*` options name another one (REST, SQL, Glue, …).
"""

import os
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.options import TableOptions
from millstream.lake.storage import Storage, iceberg_properties

CATALOG_FILE: Final = "millstream-catalog.db"
CATALOG_NAME: Final = "millstream"
DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True)
class CatalogPlace:
    """Which catalog, and what the table is called in it."""

    properties: dict[str, str]
    identifier: tuple[str, ...]
    location: str | None
    database: str | None
    """The SQLite file of the default catalog."""

    def connect(self) -> Any:
        try:
            return load_catalog(CATALOG_NAME, **self.properties)
        except Exception as error:  # each kind of catalog has its own exceptions
            where = self.properties.get("uri", "?")
            raise LakeError(f"the Iceberg catalog at {where} cannot be opened: {error}") from error


def catalog_place(options: TableOptions) -> CatalogPlace:
    """Where the options point."""
    storage = None if options.path is None else Storage.at(options.path, options.s3)
    region = (storage or Storage("s3://any", options.s3)).region
    if options.table is not None:
        identifier = tuple(options.table.split("."))
        if len(identifier) < 2 or not all(identifier):
            raise LakeOptionError(f"table={options.table}: write NAMESPACE.NAME")
    else:
        assert storage is not None
        identifier = (DEFAULT_NAMESPACE, os.path.basename(storage.url))
    location = None if storage is None else storage.uri
    if options.catalog:
        properties = {**iceberg_properties(options.s3, region), **dict(options.catalog)}
        return CatalogPlace(properties, identifier, location, None)
    assert storage is not None
    if not storage.is_local:
        raise LakeOptionError(
            f"{options.path}: an Iceberg table in an object store needs a catalog that all its users can reach:"
            " catalog.type=rest with catalog.uri=https://…, or catalog.uri=postgresql://… (catalog.type=sql)"
        )
    directory = os.path.dirname(storage.url)
    database = os.path.join(directory, CATALOG_FILE)
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{directory}"}
    return CatalogPlace(properties, identifier, location, database)


def load(place: CatalogPlace) -> Any:
    """The table, or None if the catalog has none of that name."""
    if place.database is not None and not os.path.exists(place.database):
        return None
    try:
        return place.connect().load_table(place.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def prepare(place: CatalogPlace) -> Any:
    """The catalog, with the table's namespace in it."""
    if place.database is not None:
        os.makedirs(os.path.dirname(place.database), exist_ok=True)
    catalog = place.connect()
    catalog.create_namespace_if_not_exists(place.identifier[:-1])
    return catalog
