"""`millstream topic`: create, list, describe, alter, delete; `hot` is in `topic_hot`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes, topic_hot
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    TopicArgument,
    assignments,
    complete_topic,
    open_client,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.client import Topic

app = typer.Typer(help="Create, list, describe, alter and delete topics; find their hot keys.", no_args_is_help=True)
app.command("hot")(topic_hot.hot)

TopicArguments = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topic names.", autocompletion=complete_topic, show_default=False),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="NAME=VALUE", help="A topic setting, e.g. retention.ms=3600000. Repeatable."
    ),
]


@app.command()
def create(
    topics: TopicArguments,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="How many. [default: the broker's]")
    ] = None,
    replication: Annotated[
        int | None, typer.Option("--replication", "-r", metavar="N", help="Copies of each. [default: the broker's]")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is fine.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Create topics.

    \b
    Examples:
      millstream topic create orders
      millstream topic create orders --partitions 6 --config retention.ms=3600000
    """
    wanted = assignments(config, "--config")
    outcome = []
    with open_client(bootstrap, timeout, settings) as client:
        for name in topics:
            created = client.create_topic(
                name, partitions, replication=replication, config=wanted, exist_ok=if_not_exists
            )
            outcome.append({"topic": name, "created": created})
            if not json:
                print(f"created {name}" if created else f"{name} exists already")
    if json:
        print_json(outcome)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also topics that begin with __.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """List topics with their partitions.

    \b
    Examples:
      millstream topic list
      millstream topic list --json | jq -r '.[].topic'
    """
    with open_client(bootstrap, timeout, settings) as client:
        found = client.topics.summaries(client.list_topics(internal=internal))
    if json:
        print_json([{"topic": name, "partitions": count, "replication": copies} for name, count, copies in found])
    elif found:
        print_table(("topic", "partitions", "replication"), found)
    else:
        note("no topics yet: create one with `millstream topic create NAME`")


@app.command()
def describe(
    topics: TopicArguments,
    all_settings: Annotated[bool, typer.Option("--all", help="Also the settings that are at their default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Show partitions, leaders, offsets and settings of topics.

    \b
    Examples:
      millstream topic describe orders
      millstream topic describe orders --all --json
    """
    documents = []
    with open_client(bootstrap, timeout, settings) as client:
        for name in topics:
            topic = client.describe_topic(name)
            config = topic.config
            if all_settings:
                config = {entry.name: entry.value for entry in client.topics.config(name).values()}
            if json:
                documents.append(_document(topic, config))
            else:
                _show(topic, config)
    if json:
        print_json(documents)


@app.command()
def alter(
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="Grow to N partitions.")
    ] = None,
    config: Config = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Put a setting back to its default. Repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Add partitions, change or reset settings.

    \b
    Examples:
      millstream topic alter orders --partitions 12
      millstream topic alter orders --config retention.ms=60000 --reset segment.bytes
    """
    changes: dict[str, Any] = {**assignments(config, "--config"), **dict.fromkeys(reset or [])}
    if partitions is None and not changes:
        raise CommandFailedError("nothing to alter: give --partitions, --config or --reset", exit_codes.USAGE)
    with open_client(bootstrap, timeout, settings) as client:
        client.alter_topic(topic, partitions=partitions, config=changes)
    if json:
        print_json({"topic": topic, "partitions": partitions, "config": changes})
    else:
        print(f"altered {topic}")


@app.command()
def delete(
    topics: TopicArguments,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is fine.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Delete topics with all their records. There is no way back.

    \b
    Example:
      millstream topic delete orders
    """
    outcome = []
    with open_client(bootstrap, timeout, settings) as client:
        for name in topics:
            deleted = client.delete_topic(name, missing_ok=if_exists)
            outcome.append({"topic": name, "deleted": deleted})
            if not json:
                print(f"deleted {name}" if deleted else f"{name} does not exist")
    if json:
        print_json(outcome)


def _document(topic: "Topic", config: dict[str, str]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "records": topic.records,
        "config": config,
        "partitions": [
            {
                "partition": part.id,
                "leader": part.leader,
                "replicas": part.replicas,
                "in_sync": part.in_sync,
                "earliest": part.earliest,
                "latest": part.latest,
            }
            for part in topic.partitions
        ],
    }


def _show(topic: "Topic", config: dict[str, str]) -> None:
    print(f"{topic.name}  id {topic.id}  {len(topic.partitions)} partitions  {topic.records} records")
    if config:
        print_table(("setting", "value"), sorted(config.items()))
    print_table(
        ("partition", "leader", "replicas", "in sync", "earliest", "latest", "records"),
        [
            (
                part.id,
                "none" if part.leader is None else part.leader,
                ",".join(map(str, part.replicas)),
                ",".join(map(str, part.in_sync)),
                *(("?", "?", "?") if part.leader is None else (part.earliest, part.latest, part.records)),
            )
            for part in topic.partitions
        ],
    )
