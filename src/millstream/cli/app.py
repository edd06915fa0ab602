"""The commands of `millstream`, and the exit codes of failures."""

import copy
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import (
    acl,
    backup,
    broker,
    capacity,
    command_config,
    consume,
    demo,
    doctor,
    exit_codes,
    gateway,
    migrate,
    mirror,
    produce,
    quota,
    schema,
    settings,
    simulate,
    sql,
    table,
    tier,
    topic,
    txn,
    user,
)
from millstream.cli.bench import commands as bench
from millstream.cli.cluster import commands as cluster
from millstream.cli.groups.commands import group_app, share_app
from millstream.cli.log import commands as log
from millstream.cli.options import (
    AccessFile,
    AllowedOrigins,
    AuthFile,
    ClusterAccess,
    ClusterConfigs,
    ClusterName,
    FurtherClusters,
    GatewayConnection,
    Http,
    Insecure,
    Json,
    NoHttp,
    PassThrough,
    TlsCert,
    TlsClientCa,
    TlsKey,
    TrustedProxies,
)
from millstream.cli.pipeline import commands as pipeline
from millstream.cli.security import commands as security
from millstream.cli.serve import ServeOptions
from millstream.cli.serve import run as run_serve
from millstream.cli.terminal import CommandFailedError, complain, print_json
from millstream.compilation import description, why_plain
from millstream.version import VERSION

if TYPE_CHECKING:
    from millstream.raw_client import WireError

app = typer.Typer(
    name="millstream",
    help="Millstream: a Kafka-compatible commit log. Run brokers, topics, groups, pipelines and tables.",
    epilog=exit_codes.EXPLANATION,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def serve(
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="Data directory. [default: ./millstream-data]"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address for clients; port 0 selects a free port. [default: 127.0.0.1:9092]",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Settings file, in the format of Kafka's server.properties."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting; overrides the file. Repeatable."),
    ] = None,
    http: Http = None,
    no_http: NoHttp = False,
    auth_file: AuthFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    command_config: GatewayConnection = None,
    pass_through: PassThrough = None,
    access_file: AccessFile = None,
    allowed_origin: AllowedOrigins = None,
    trusted_proxy: TrustedProxies = None,
    tls_client_ca: TlsClientCa = None,
    cluster: FurtherClusters = None,
    cluster_config: ClusterConfigs = None,
    cluster_access: ClusterAccess = None,
    cluster_name: ClusterName = None,
    bootstrap_user: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-user",
            metavar="NAME",
            help="SCRAM user of a new cluster, at its first start. The password is read from the terminal,"
            " --bootstrap-password-file or MILLSTREAM_USER_PASSWORD.",
        ),
    ] = None,
    bootstrap_password_file: Annotated[
        str | None,
        typer.Option("--bootstrap-password-file", metavar="FILE", help="File with the password of --bootstrap-user."),
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            "--cores",
            metavar="N|auto",
            help="Number of nodes on this machine, each a process, with ports from that of --listen on; auto takes one"
            " for each core. [default: 1]",
        ),
    ] = None,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
) -> None:
    """Start a broker, with console, REST and schema registry over HTTP. SIGTERM or Ctrl-C stops it cleanly.

    Prints one line, 'ready kafka=HOST:PORT http=HOST:PORT', when it accepts connections. HTTP is served by a child
    process, which is restarted if it ends. `millstream settings` lists the settings for --set.

    \b
    Examples:
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --data-dir /var/lib/millstream --no-http --insecure
      millstream serve --http 0.0.0.0:8081 --auth-file people.txt --tls-cert chain.pem --tls-key key.pem
      millstream serve --cores auto
      millstream serve --config server.properties --set log.retention.ms=86400000
      millstream serve --cluster test=test-1:9092 --cluster-name prod
      millstream serve --config secured.properties --command-config gateway.properties --pass-through SCRAM-SHA-512
    """
    options = ServeOptions(data_dir, listen, config, set_ or [], exit_with_stdin)
    options.http, options.no_http, options.auth_file, options.insecure = http, no_http, auth_file, insecure
    options.tls_cert, options.tls_key, options.tls_client_ca = tls_cert, tls_key, tls_client_ca
    options.command_config, options.pass_through, options.access_file = command_config, pass_through, access_file
    options.allowed_origins, options.trusted_proxies = allowed_origin or [], trusted_proxy or []
    options.clusters, options.cluster_configs = cluster or [], cluster_config or []
    options.cluster_access, options.cluster_name = cluster_access or [], cluster_name
    options.bootstrap_user, options.bootstrap_password_file = bootstrap_user, bootstrap_password_file
    options.cores = cores
    raise typer.Exit(run_serve(options))


app.add_typer(topic.app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(share_app, name="share")
app.add_typer(txn.app, name="txn")
app.add_typer(quota.app, name="quota")
app.add_typer(acl.app, name="acl")
app.add_typer(user.app, name="user")
app.add_typer(mirror.app, name="mirror")
app.add_typer(migrate.app, name="migrate")
app.add_typer(cluster.app, name="cluster")
app.add_typer(broker.app, name="broker")
app.add_typer(log.app, name="log")
app.add_typer(tier.app, name="tier")
app.add_typer(backup.app, name="backup")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(table.app, name="table")
app.add_typer(schema.app, name="schema")
app.add_typer(security.app, name="security")
app.command("gateway")(gateway.gateway)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("sql")(sql.sql)
app.command("bench")(bench.bench)
app.command("capacity")(capacity.capacity)
app.command("doctor")(doctor.doctor)
app.command("settings")(settings.settings)
app.command("simulate")(simulate.simulate)


@app.command("container", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def container_entry_point(
    context: typer.Context,
    health: Annotated[
        bool, typer.Option("--health", help="Exit with 0 if the node of this container is ready, else with 1.")
    ] = False,
    wait_to_stop: Annotated[
        int | None,
        typer.Option(
            "--wait-to-stop",
            metavar="SECONDS",
            help="Wait until every partition can be written without this node, at most so long: before it is stopped.",
        ),
    ] = None,
) -> None:
    """Start the node of a container, with the conventions of the image apache/kafka (docs/deploy-container.md).

    Settings are variables KAFKA_..., or the file /mnt/shared/config/server.properties. Other options are those of
    `millstream serve`.

    \b
    Examples:
      KAFKA_NODE_ID=1 KAFKA_PROCESS_ROLES=broker,controller ... millstream container
      millstream container --health
    """
    from millstream.cli import container

    words = ["--health"] if health else context.args
    raise typer.Exit(container.run(words if wait_to_stop is None else ["--wait-to-stop", str(wait_to_stop)]))


@app.command("kafka-script", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def kafka_script(
    context: typer.Context,
    install: Annotated[
        str | None, typer.Option("--install", metavar="DIR", help="Write the scripts into a directory.")
    ] = None,
) -> None:
    """Run a script of Apache Kafka's bin directory, such as kafka-topics, with its common options.

    The container image has them in /opt/kafka/bin, for compose files and health checks that call them
    (docs/deploy-container.md).

    \b
    Examples:
      millstream kafka-script kafka-topics --bootstrap-server localhost:9092 --list
      millstream kafka-script --install /opt/kafka/bin
    """
    from millstream.cli import kafka_scripts

    raise typer.Exit(kafka_scripts.run(["--install", install] if install is not None else context.args))


app.command("demo")(demo.demo)


@app.command()
def version(json: Json = False) -> None:
    """Print the version, and whether the modules of the request path are compiled.

    \b
    Example:
      millstream version --json
    """
    why = why_plain()
    if json:
        import platform

        form = {"modules": description()} if why is None else {"modules": description(), "why_plain": why}
        print_json({"millstream": VERSION, "python": platform.python_version(), **form})
    else:
        print(f"millstream {VERSION}, {description()}" + ("" if why is None else f" ({why})"))


def run_app(arguments: list[str]) -> int:
    """Runs a command line. An expected failure is one line on stderr and an exit code."""
    try:
        command_config.add_to_all(typer.main.get_command(_part_of(arguments)))(args=arguments, prog_name="millstream")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else exit_codes.FAILED if leaving.code else exit_codes.OK
    except CommandFailedError as error:
        complain(error.message)
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        complain("this command needs the package confluent-kafka: pip install 'millstream[client]'")
        return exit_codes.FAILED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        complain(str(error))
        return code
    return exit_codes.OK


def _part_of(arguments: list[str]) -> typer.Typer:
    """The application with the command of a command line alone: to build all commands takes a tenth of a second. All of
    it for help, and for a command that does not exist."""
    first = arguments[0] if arguments else ""
    names = {first, version.__name__}  # with one command alone, Typer would leave out its name
    groups = [each for each in app.registered_groups if each.name == first]
    commands = [
        each for each in app.registered_commands if (each.name or getattr(each.callback, "__name__", "")) in names
    ]
    if not groups and len(commands) < 2:
        return app
    part = copy.copy(app)
    part.registered_groups, part.registered_commands = groups, commands
    return part


def _exit_code(error: Exception) -> int | None:
    from millstream.client import errors
    from millstream.raw_client import WireError

    if isinstance(error, WireError):
        return _wire_exit_code(error)
    meanings: tuple[tuple[type[Exception], int], ...] = (
        (errors.NotAllowedError, exit_codes.NOT_ALLOWED),
        (errors.NoBrokerError, exit_codes.NO_BROKER),
        (errors.DeadlineError, exit_codes.TIMED_OUT),
        (errors.TopicNotFoundError, exit_codes.NOT_FOUND),
        (errors.OffsetOutOfRangeError, exit_codes.NOT_FOUND),
        (errors.TopicExistsError, exit_codes.EXISTS),
        (errors.DamagedRecordsError, exit_codes.DAMAGED),
        (FileNotFoundError, exit_codes.NOT_FOUND),
        (errors.MillstreamError, exit_codes.FAILED),
        (OSError, exit_codes.FAILED),
    )
    cause = error.__cause__ if isinstance(error, errors.DeliveryError) and error.__cause__ else error
    return next((code for kind, code in meanings if isinstance(cause, kind)), None)


def _wire_exit_code(error: "WireError") -> int:
    from millstream.admin.errors import InvalidArgumentError
    from millstream.formats.model.errors import ErrorCode
    from millstream.raw_client import RefusedError, SetupError, UnreachableError
    from millstream.raw_client.errors import NOT_ALLOWED

    if isinstance(error, UnreachableError):
        return exit_codes.TIMED_OUT if error.late else exit_codes.NO_BROKER
    if isinstance(error, (SetupError, InvalidArgumentError)):
        return exit_codes.USAGE
    meanings = {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: exit_codes.TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: exit_codes.TIMED_OUT,
        ErrorCode.NOT_COORDINATOR: exit_codes.TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS: exit_codes.TIMED_OUT,
        ErrorCode.REQUEST_TIMED_OUT: exit_codes.TIMED_OUT,
        ErrorCode.LEADER_NOT_AVAILABLE: exit_codes.TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: exit_codes.NOT_FOUND,
        ErrorCode.OFFSET_OUT_OF_RANGE: exit_codes.NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND: exit_codes.NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND: exit_codes.NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: exit_codes.NOT_FOUND,
        ErrorCode.TOPIC_ALREADY_EXISTS: exit_codes.EXISTS,
        **dict.fromkeys(NOT_ALLOWED, exit_codes.NOT_ALLOWED),
    }
    return meanings.get(error.code, exit_codes.FAILED) if isinstance(error, RefusedError) else exit_codes.FAILED
