"""Produce: `POST /topics/{topic}/messages`, its batch, and `POST /v1/topics/{topic}/produce`."""

import asyncio
from collections.abc import Sequence
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.gateway.http.answers import json_answer
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.http.errors import BadRequestError, error_document
from millstream.gateway.http.kafka_errors import Trouble
from millstream.gateway.http.parts import GatewayParts
from millstream.gateway.produce.bodies import Encode, Form, Message, Messages, Records, outgoing, read_body
from millstream.gateway.produce.docs import BATCH, ONE, RECORDS
from millstream.gateway.produce.in_flight import InFlight
from millstream.gateway.produce.publishing import Outcome, Outgoing, Publisher, Stored
from millstream.gateway.produce.topics import WritableTopics
from millstream.registry.encoding import Encoders, UnfitValueError
from millstream.registry.subjects import parse_subject

_THREADS = 32


class Producing:
    """What all ways to produce have in common: one publisher, one bound on what is in flight."""

    def __init__(self, parts: GatewayParts) -> None:
        limits = parts.options.limits
        self.limits = limits
        self.topics = WritableTopics(parts.cluster)
        self.publisher = Publisher(parts.cluster, limits)
        self.in_flight = InFlight(limits.max_in_flight_bytes)
        self.encoders = Encoders(parts.registry)
        self.threads = CapacityLimiter(_THREADS)
        """For what asks the cluster, and may wait for it: others shall not wait for these."""
        self._asking: dict[str, asyncio.Task[int]] = {}
        parts.closing.callback(self.publisher.close)

    async def partitions(self, topic: str) -> int:
        """How many there are; requests that want to know of one topic at the same time ask once."""
        known = self.topics.known_partitions(topic)
        if known is not None:
            return known
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
        return await asyncio.shield(asking)

    async def _ask(self, topic: str) -> int:
        try:
            return await to_thread.run_sync(self.topics.partitions, topic, limiter=self.threads)
        finally:
            del self._asking[topic]

    async def publish(self, topic: str, records: Sequence[Outgoing]) -> list[Outcome]:
        """Nothing is sent if one of them names a partition that there is not."""
        count = await self.partitions(topic)
        for number, record in enumerate(records):
            if record.partition >= count:
                self.topics.forget(topic)  # it may have been added a moment ago: the next try knows
                raise BadRequestError(
                    404,
                    f"record {number}: topic {topic!r} has no partition {record.partition}",
                    f"it has {count}, counted from 0; nothing was written",
                    code=40404,
                )
        outcomes = await self.publisher.publish(topic, records)
        for outcome in outcomes:
            if isinstance(outcome, Trouble) and outcome.status == 404:
                self.topics.forget(topic)
                break
        return outcomes


class ProduceRoutes:
    def __init__(self, producing: Producing) -> None:
        self._producing = producing

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("POST", "/topics/{topic}/messages", self.one, doc=ONE, reads_body=False),
            endpoint("POST", "/topics/{topic}/messages/batch", self.batch, doc=BATCH, reads_body=False),
            endpoint("POST", "/v1/topics/{topic}/produce", self.records, doc=RECORDS, reads_body=False),
        ]

    async def one(self, asked: Asked) -> Response:
        topic, forms = asked.path("topic"), _forms(asked, Form.TEXT, Form.BASE64)
        async with self._body(asked) as body:
            message = read_body(Message, body, *forms)
            (outcome,) = await self._publish(asked, topic, [message], forms)
        if isinstance(outcome, Trouble):
            raise _refusal(outcome)
        return json_answer({"topic": topic, **outcome._asdict()})

    async def batch(self, asked: Asked) -> Response:
        topic, forms = asked.path("topic"), _forms(asked, Form.TEXT, Form.BASE64)
        async with self._body(asked) as body:
            outcomes = await self._publish(asked, topic, read_body(Messages, body, *forms).messages, forms)
        return _answer(asked, outcomes, {})

    async def records(self, asked: Asked) -> Response:
        topic, forms = asked.path("topic"), _forms(asked, Form.TEXT, Form.JSON)
        async with self._body(asked) as body:
            outcomes = await self._publish(asked, topic, read_body(Records, body, *forms).records, forms)
        return _answer(asked, outcomes, {"topic": topic})

    def _body(self, asked: Asked) -> Any:
        limits = self._producing.limits
        return self._producing.in_flight.body(asked.request, limits.max_body_bytes, limits.body_timeout_s)

    async def _publish(
        self, asked: Asked, topic: str, messages: list[Message[Any, Any]], forms: tuple[Form, Form]
    ) -> list[Outcome]:
        most = self._producing.limits.max_records
        if not 0 < len(messages) <= most:
            raise BadRequestError(422, f"{len(messages)} records in one request", f"send from 1 to {most}")
        if Form.SCHEMA in forms:
            threads = self._producing.threads
            records = await to_thread.run_sync(self._encoded, asked, topic, messages, forms, limiter=threads)
        else:
            records = outgoing(messages, *forms, _no_schema, _no_schema)
        return await self._producing.publish(topic, records)

    def _encoded(
        self, asked: Asked, topic: str, messages: list[Message[Any, Any]], forms: tuple[Form, Form]
    ) -> list[Outgoing]:
        """May ask the cluster for the schema, and take a while."""
        key_of, value_of = (
            self._schema(asked, topic, part) if form is Form.SCHEMA else _no_schema
            for part, form in zip(("key", "value"), forms, strict=True)
        )
        return outgoing(messages, *forms, key_of, value_of)

    def _schema(self, asked: Asked, topic: str, part: str) -> Encode:
        number = asked.number(f"{part}_schema_id", 0)
        encoders = self._producing.encoders
        try:
            if number:
                return encoders.by_id(number).encode
            return encoders.version(parse_subject(f"{topic}-{part}")).encode
        except UnfitValueError as error:
            raise BadRequestError(422, str(error), "name another schema") from None


def _no_schema(value: Any) -> bytes:
    raise AssertionError("only forms of a schema are encoded")


def _forms(asked: Asked, key: Form, value: Form) -> tuple[Form, Form]:
    return _form(asked, "key_format", key), _form(asked, "value_format", value)


def _form(asked: Asked, name: str, default: Form) -> Form:
    text = asked.text(name)
    if not text:
        return default
    try:
        return Form(text)
    except ValueError:
        raise BadRequestError(
            400, f"?{name}={text} is not known", f"give one of {', '.join(form.value for form in Form)}"
        ) from None


def _refusal(trouble: Trouble) -> BadRequestError:
    return BadRequestError(trouble.status, trouble.message, trouble.hint, code=trouble.code)


def _answer(asked: Asked, outcomes: Sequence[Outcome], document: dict[str, Any]) -> Response:
    """200 if all are stored, 207 if some are; if none is, the first one's error."""
    path = asked.request.scope["path"]
    offsets: list[dict[str, Any]] = []
    stored = 0
    for outcome in outcomes:
        if isinstance(outcome, Stored):
            stored += 1
            offsets.append({"partition": outcome[0], "offset": outcome[1], "timestamp": outcome[2]})
        else:
            offsets.append(error_document(path, outcome.code, outcome.message, outcome.hint))
    if not stored:
        first = outcomes[0]
        assert isinstance(first, Trouble)
        raise _refusal(first)
    return json_answer(document | {"offsets": offsets}, status=200 if stored == len(outcomes) else 207)
