"""Confluent's REST API, version 2, as its REST proxy, Karapace and Strimzi's bridge serve it."""
