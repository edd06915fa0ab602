"""Programs that read and write a topic of this cluster, with its address and its security settings, for seven tools.

Pure. Secrets are never part of a program: it has `USER` and `PASSWORD` in their place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millstream.console.topics.settings import name_error
from millstream.raw_client.settings import WireSettings

_TOKENS = "OAUTHBEARER"
_NO_LOGIN = "// The cluster uses OAUTHBEARER: add the token settings of your identity provider.\n"


@dataclass(frozen=True, slots=True)
class Connection:
    """How clients reach the cluster."""

    bootstrap: str
    topic: str
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    """Of SASL; empty without SASL."""
    gateway: str = "http://127.0.0.1:8081"
    gateway_login: bool = False
    """Whether the gateway wants credentials."""

    @property
    def password_mechanism(self) -> str:
        """The mechanism, if it takes a user and a password."""
        return "" if self.mechanism == _TOKENS else self.mechanism

    @property
    def note(self) -> str:
        """The first line of programs whose login cannot be filled in."""
        return _NO_LOGIN if self.mechanism == _TOKENS else ""

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def properties(self) -> dict[str, str]:
        """The settings of librdkafka beside the address."""
        found: dict[str, str] = {}
        if self.protocol != "PLAINTEXT":
            found["security.protocol"] = self.protocol
        if self.mechanism == _TOKENS:
            found |= {
                "sasl.mechanism": _TOKENS,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "USER",
                "sasl.oauthbearer.client.secret": "PASSWORD",
                "sasl.oauthbearer.token.endpoint.url": "TOKEN_URL",
            }
        elif self.mechanism:
            found |= {"sasl.mechanism": self.mechanism, "sasl.username": "USER", "sasl.password": "PASSWORD"}
        if self.has_tls:
            found["ssl.ca.location"] = "ca.pem"
        return found


def topic_of_link(text: str) -> str:
    """Empty if it is not the name of a topic: the name is part of programs that people copy into a shell."""
    return text if name_error(text, {}) is None else ""


def connection_of(
    settings: WireSettings, bootstrap: str, topic: str, gateway: str, *, gateway_login: bool
) -> Connection:
    mechanism = settings.sasl.mechanism if settings.sasl is not None else ""
    return Connection(bootstrap, topic, settings.protocol.name, mechanism, gateway, gateway_login)


def _kcat(to: Connection) -> str:
    options = "".join(f" -X {name}={value}" for name, value in to.properties().items())
    return (
        f'# write\necho \'{{"item": "tea"}}\' | kcat -b {to.bootstrap}{options} -t {to.topic} -P\n'
        f"# read\nkcat -b {to.bootstrap}{options} -t {to.topic} -C -o beginning -e"
    )


def _python(to: Connection) -> str:
    rows = "".join(f'    "{name}": "{value}",\n' for name, value in to.properties().items())
    return (
        "# pip install confluent-kafka\n"
        "from confluent_kafka import Consumer, Producer\n\n"
        f'settings = {{\n    "bootstrap.servers": "{to.bootstrap}",\n{rows}}}\n'
        "producer = Producer(settings)\n"
        f'producer.produce("{to.topic}", \'{{"item": "tea"}}\')\n'
        "producer.flush()\n\n"
        'consumer = Consumer(settings | {"group.id": "first", "auto.offset.reset": "earliest"})\n'
        f'consumer.subscribe(["{to.topic}"])\n'
        "record = consumer.poll(30)\n"
        "print(record.value() if record else 'nothing arrived within 30 s')\n"
        "consumer.close()"
    )


def _java_properties(to: Connection) -> dict[str, str]:
    found: dict[str, str] = {}
    if to.protocol != "PLAINTEXT":
        found["security.protocol"] = to.protocol
    if to.password_mechanism:
        scram = to.mechanism.startswith("SCRAM")
        module = f"org.apache.kafka.common.security.{'scram.Scram' if scram else 'plain.Plain'}LoginModule"
        found["sasl.mechanism"] = to.mechanism
        found["sasl.jaas.config"] = f'{module} required username="USER" password="PASSWORD";'
    if to.has_tls:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"}
    return found


def _java(to: Connection) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '\\"') + '"'

    rows = "".join(f"settings.put({quoted(name)}, {quoted(value)});\n" for name, value in _java_properties(to).items())
    return (
        f"// org.apache.kafka:kafka-clients\n{to.note}"
        "var settings = new java.util.Properties();\n"
        f'settings.put("bootstrap.servers", "{to.bootstrap}");\n{rows}'
        "var text = new org.apache.kafka.common.serialization.StringSerializer();\n"
        "try (var producer = new org.apache.kafka.clients.producer.KafkaProducer<>(settings, text, text)) {\n"
        "    producer.send(new org.apache.kafka.clients.producer.ProducerRecord<>(\n"
        f'        "{to.topic}", "{{\\"item\\": \\"tea\\"}}")).get();\n}}'
    )


def _go(to: Connection) -> str:
    imports = ['"context"', '"fmt"', '"github.com/twmb/franz-go/pkg/kgo"']
    options = ["kgo.SeedBrokers(" + ", ".join(f'"{each}"' for each in to.bootstrap.split(",")) + ")"]
    options.append(f'kgo.ConsumeTopics("{to.topic}")')
    if to.has_tls:
        options.append("kgo.DialTLS()  // the CA certificates of the system")
    if to.password_mechanism:
        kind = "plain" if to.mechanism == "PLAIN" else "scram"
        imports.append(f'"github.com/twmb/franz-go/pkg/sasl/{kind}"')
        method = {"PLAIN": "AsMechanism", "SCRAM-SHA-256": "AsSha256Mechanism"}.get(to.mechanism, "AsSha512Mechanism")
        options.append(f'kgo.SASL({kind}.Auth{{User: "USER", Pass: "PASSWORD"}}.{method}())')
    lines = "".join(
        f"\t\t{text},{' //' + note if mark else ''}\n"
        for text, mark, note in (option.partition("  //") for option in options)
    )
    return (
        f"{to.note}package main\n\nimport (\n" + "".join(f"\t{name}\n" for name in imports) + ")\n\n"
        "func main() {\n"
        f"\tclient, err := kgo.NewClient(\n{lines}\t)\n"
        "\tif err != nil {\n\t\tpanic(err)\n\t}\n"
        "\tdefer client.Close()\n"
        "\tctx := context.Background()\n"
        f'\trecord := &kgo.Record{{Topic: "{to.topic}", Value: []byte(`{{"item": "tea"}}`)}}\n'
        "\tif err := client.ProduceSync(ctx, record).FirstErr(); err != nil {\n\t\tpanic(err)\n\t}\n"
        "\tclient.PollFetches(ctx).EachRecord(func(r *kgo.Record) { fmt.Println(string(r.Value)) })\n}"
    )


def _node(to: Connection) -> str:
    brokers = ", ".join(f"'{each}'" for each in to.bootstrap.split(","))
    more = "  ssl: { ca: [require('fs').readFileSync('ca.pem', 'utf-8')] },\n" if to.has_tls else ""
    if to.password_mechanism:
        more += f"  sasl: {{ mechanism: '{to.mechanism.lower()}', username: 'USER', password: 'PASSWORD' }},\n"
    return (
        f"// npm install kafkajs\n{to.note}"
        "const { Kafka } = require('kafkajs')\n"
        f"const kafka = new Kafka({{\n  brokers: [{brokers}],\n{more}}})\n\n"
        "async function main() {\n"
        "  const producer = kafka.producer()\n"
        "  await producer.connect()\n"
        f"  await producer.send({{ topic: '{to.topic}', messages: [{{ value: '{{\"item\": \"tea\"}}' }}] }})\n"
        "  await producer.disconnect()\n"
        "}\nmain()"
    )


def _spark(to: Connection) -> str:
    options = "".join(f'    .option("kafka.{name}", "{value}")\n' for name, value in to.properties().items())
    return (
        "# pip install 'millstream[spark]'\n"
        "from millstream.spark.session import start_session\n\n"
        f'spark = start_session("{to.topic}")\n'
        "rows = (\n"
        '    spark.read.format("millstream")\n'
        f'    .option("kafka.bootstrap.servers", "{to.bootstrap}")\n{options}'
        f'    .option("subscribe", "{to.topic}")\n'
        "    .load()\n"
        ")\n"
        'rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").show(truncate=False)'
    )


def _curl(to: Connection) -> str:
    login = " -u USER:PASSWORD" if to.gateway_login else ""
    body = '\'{"records": [{"value": {"item": "tea"}}]}\''
    return (
        f"# write\ncurl{login} {to.gateway}/v1/topics/{to.topic}/produce -d {body}\n"
        f"# about the topic\ncurl{login} {to.gateway}/topics/{to.topic}"
    )


SNIPPETS: Mapping[str, Callable[[Connection], str]] = {
    "kcat": _kcat,
    "Python": _python,
    "Java": _java,
    "Go": _go,
    "Node": _node,
    "Spark": _spark,
    "curl": _curl,
}
"""By the name of the tool."""
