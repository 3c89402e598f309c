"""`penstock produce`: sends lines or JSON documents as messages."""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias

import msgspec
import typer

from penstock.cli.common import CommandError, ExitCode, Output, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.lines import read_lines
from penstock.cli.output import print_json
from penstock.cli.parameters import MAX_BATCH_BYTES, MAX_INT32, MAX_LINGER_MS
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.cli.times import parse_delay_ms, parse_time_ms
from penstock.client import Delivery, Producer
from penstock.client import deliver_after as deliver_after_header
from penstock.client import deliver_at as deliver_at_header
from penstock.client.types import Headers
from penstock.config.addresses import quoted

app = make_app()

InputFormat = Literal["lines", "json"]
Acks = Literal["all", "1", "0"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Fields: TypeAlias = dict[str, msgspec.Raw]
"""Fields of a JSON object; values are undecoded JSON."""
NULL = msgspec.Raw(b"null")
OBJECT = msgspec.json.Decoder(Fields)
STRING = msgspec.json.Decoder(str)
INTEGER = msgspec.json.Decoder(int)
HEADERS = msgspec.json.Decoder(Fields | list[Fields])
NO_TIMESTAMP = -1
QUOTE = ord('"')
MAX_TIMESTAMP_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A parsed input message."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Options that apply to all messages of one call."""

    format: InputFormat
    key_separator: str | None
    key: str | None
    partition: int | None
    headers: Headers
    ignore_partition: bool = False


@app.command()
@with_connection()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="File to read; - is standard input.")] = "-",
    format_: Annotated[
        InputFormat,
        typer.Option("--format", "-f", help="Input format: one message, or one JSON document (see above), per line."),
    ] = "lines",
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator between key and value in a line."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key for messages that have none.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=MAX_INT32, help="Send all messages to this partition.")
    ] = None,
    ignore_partition: Annotated[
        bool,
        typer.Option("--ignore-partition", help="With --format json: ignore `partition` and partition by key."),
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header for all messages; may be repeated."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", metavar="TIME", help="Deliver at this time (topics with delivery.schedule.enable)."
        ),
    ] = None,
    deliver_after: Annotated[
        str | None,
        typer.Option("--deliver-after", metavar="DURATION", help="Deliver after this time, such as 90m."),
    ] = None,
    acks: Annotated[
        Acks, typer.Option(help="Replicas that must store a message: all in-sync, the leader (1), or none (0).")
    ] = "all",
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression codec of batches.")
    ] = "none",
    linger_ms: Annotated[
        float, typer.Option(min=0, max=MAX_LINGER_MS, help="Milliseconds that a batch waits for more messages.")
    ] = 5,
    batch_size: Annotated[int, typer.Option(min=1024, max=MAX_BATCH_BYTES, help="Maximum batch size in bytes.")] = 64
    * 1024,
    auto_create: Annotated[
        bool,
        typer.Option(
            "--auto-create/--no-auto-create",
            help="Create a missing topic, if the broker's `auto.create.topics.enable` is true.",
        ),
    ] = True,
    output: Output = "text",
    *,
    connection: Connection,
) -> None:
    """Send messages, one per line of a file or of standard input.

    With `--format json`, each line is a document with `value` and optionally `key`, `headers` (an object, or a list of
    objects with `key` and `value`), `partition` and `timestamp_ms`. A value that is not a string is sent as JSON;
    `value_base64` and `key_base64` contain bytes. `penstock consume --output json` writes this format. A copy keeps the
    partitions of the original; if the target has fewer, use `--ignore-partition`.

    Sending stops at the first message that is rejected or not acknowledged in time.

    Examples:

    - `echo hello | penstock produce greetings`
    - `penstock produce flights flights.csv --key-separator ,`
    - `penstock consume flights --output json | penstock produce copy --format json`
    """
    headers: list[tuple[str, bytes | None]] = [parse_header(text) for text in header or []]
    headers += schedule_headers(deliver_at, deliver_after)
    if partition is not None and ignore_partition:
        raise typer.BadParameter("cannot be combined with --partition", param_hint="--ignore-partition")
    options = ProduceOptions(format_, key_separator, key, partition, headers, ignore_partition)
    settings = {
        "acks": acks if acks == "all" else int(acks),
        "compression": compression,
        "linger_ms": linger_ms,
        "batch_size": batch_size,
        "auto_create_topics": auto_create,
    }
    run(produce_all(connection, topic, file, options, settings, output == "json"))


def parse_header(text: str) -> tuple[str, bytes]:
    """Return a header's name and value. Raises `typer.BadParameter`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{quoted(text)} is not a header; use NAME=VALUE", param_hint="--header")
    return name, value.encode()


def schedule_headers(deliver_at: str | None, deliver_after: str | None) -> list[tuple[str, bytes | None]]:
    """Return the header of a time of delivery, if one is given. Raises `typer.BadParameter`."""
    if deliver_at is not None and deliver_after is not None:
        raise typer.BadParameter("cannot be combined with --deliver-at", param_hint="--deliver-after")
    hint = "--deliver-at" if deliver_at is not None else "--deliver-after"
    try:
        if deliver_at is not None:
            return [deliver_at_header(parse_time_ms(deliver_at, int(time.time() * 1000)))]
        return [] if deliver_after is None else [deliver_after_header(parse_delay_ms(deliver_after))]
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=hint) from None


def parse_line(line: bytes, options: ProduceOptions) -> InputMessage:
    """Parse one input line. Raises ValueError with the reason."""
    if options.format == "json":
        return parse_document(line, options)
    key = None if options.key is None else options.key.encode()
    value = line
    if options.key_separator:
        before, separator, after = line.partition(options.key_separator.encode())
        if separator:
            key, value = before, after
    return InputMessage(value, key, options.headers, options.partition)


def parse_document(line: bytes, options: ProduceOptions) -> InputMessage:
    """Parse one JSON document. Raises ValueError with the reason."""
    document = decode_object(line)
    if not {"value", "value_base64"} & document.keys():
        raise ValueError('not a JSON object with a "value"')
    key = bytes_field(document, "key")
    if key is None and options.key is not None:
        key = options.key.encode()
    headers = document.get("headers")
    named = [] if headers is None else parse_headers(headers)
    partition = integer_field(document, "partition", 0, MAX_INT32)
    timestamp_ms = integer_field(document, "timestamp_ms", NO_TIMESTAMP, MAX_TIMESTAMP_MS)
    if options.ignore_partition:
        partition = None
    chosen = options.partition if options.partition is not None else partition
    return InputMessage(bytes_field(document, "value"), key, [*options.headers, *named], chosen, timestamp_ms)


def decode_object(line: bytes) -> Fields:
    """Return the undecoded fields of a JSON object, so that numbers keep all their digits. Raises ValueError."""
    try:
        return OBJECT.decode(line.decode("utf-8-sig"))
    except msgspec.ValidationError:
        raise ValueError('not a JSON object with a "value"') from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"invalid JSON: {e}") from None
    except RecursionError:
        raise ValueError("invalid JSON: nested too deeply") from None


def integer_field(document: Fields, name: str, smallest: int, largest: int) -> int | None:
    """Return an integer field; None if it is missing or null. Raises ValueError."""
    raw = document.get(name)
    if raw is None or raw == NULL:
        return None
    try:
        number = INTEGER.decode(raw)
    except msgspec.DecodeError:
        number = smallest - 1
    if not smallest <= number <= largest:
        raise ValueError(f'"{name}" must be an integer from {smallest} to {largest}')
    return number


def parse_headers(raw: msgspec.Raw) -> list[tuple[str, bytes | None]]:
    """Return headers from an object, or from a list of objects with `key` and `value` or `value_base64`."""
    if raw == NULL:
        return []
    try:
        headers = HEADERS.decode(raw)
    except msgspec.DecodeError:
        raise ValueError('"headers" must be an object, or a list of objects with a "key"') from None
    if isinstance(headers, dict):
        return [(name, content(value)) for name, value in headers.items()]
    found = []
    for header in headers:
        name = header.get("key")
        if name is None or not is_string(name):
            raise ValueError('each element of "headers" must be an object with a "key"')
        found.append((STRING.decode(name), bytes_field(header, "value")))
    return found


def is_string(raw: msgspec.Raw) -> bool:
    """Return whether the JSON value is a string."""
    return memoryview(raw)[0] == QUOTE


def bytes_field(document: Fields, name: str) -> bytes | None:
    """Return a key or value: text, JSON as written, or decoded base64. Raises ValueError."""
    encoded = document.get(f"{name}_base64")
    if encoded is not None and encoded != NULL:
        try:
            return base64.b64decode(STRING.decode(encoded), validate=True)
        except (ValueError, msgspec.DecodeError):
            raise ValueError(f'"{name}_base64" is not valid base64') from None
    raw = document.get(name)
    return None if raw is None else content(raw)


def content(raw: msgspec.Raw) -> bytes | None:
    """Return a string's text, or any other JSON value as written; None for null. Raises ValueError."""
    if raw == NULL:
        return None
    if not is_string(raw):
        return bytes(raw)
    try:
        return STRING.decode(raw).encode()
    except msgspec.DecodeError as e:
        raise ValueError(f"invalid JSON: {e}") from None


def open_source(file: str, stack: AsyncExitStack) -> BinaryIO:
    """Open the input file, or return standard input."""
    return sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))


async def send_message(producer: Producer, topic: str, message: InputMessage) -> Delivery:
    """Send a message. Raises ValueError if the topic does not have the message's partition."""
    partition = message.partition
    if partition is not None and not 0 <= partition < (count := await producer.partitions(topic)):
        raise ValueError(
            f'partition "{partition}" does not exist: topic "{topic}" has {count} partitions; use --ignore-partition '
            "or --partition, or add partitions with `penstock topic alter`"
        )
    return await producer.send(
        topic,
        message.value,
        key=message.key,
        partition=partition,
        headers=message.headers,
        timestamp_ms=message.timestamp_ms,
    )


async def read_until(source: BinaryIO, failed: asyncio.Event) -> AsyncIterator[list[bytes]]:
    """Yield lines until the source ends or `failed` is set. A source such as a pipe may never end."""
    lines = read_lines(source)
    failing = asyncio.create_task(failed.wait())
    try:
        while True:
            reading = asyncio.ensure_future(anext(lines, None))
            await asyncio.wait({reading, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done() and not reading.done():
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                return
            chunk = reading.result()
            if chunk is None:
                return
            yield chunk
    finally:
        failing.cancel()


async def produce_all(
    connection: Connection, topic: str, file: str, options: ProduceOptions, settings: dict[str, Any], as_json: bool
) -> None:
    """Send all messages and print a summary. Raises `CommandError` at the first invalid line."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        source = open_source(file, stack)
        producer = await stack.enter_async_context(
            Producer(connection.bootstrap, security=connection.security, **settings)
        )
        await producer.partitions(topic)
        progress = stack.enter_context(ProgressDisplay("messages sent", quiet=source.isatty()))
        started_s = loop.time()
        count = size_bytes = 0
        failed = asyncio.Event()
        async for lines in read_until(source, failed):
            for line in lines:
                try:
                    message = parse_line(line, options)
                    delivery = await send_message(producer, topic, message)
                except ValueError as e:
                    where = "standard input" if file == "-" else file
                    raise CommandError(f"{where}, line {count + 1}: {e}", ExitCode.USAGE) from None
                count += 1
                size_bytes += len(message.value or b"") + len(message.key or b"")
            progress.show(count)
            # The chunk's last message completes last, or nearly so. A later failure is noticed with the next chunk.
            delivery.add_done_callback(lambda _: failed.set() if producer.failure is not None else None)
            if producer.failure is not None:
                break
        await producer.flush()
        seconds = loop.time() - started_s
    if as_json:
        print_json({"topic": topic, "messages": count, "bytes": size_bytes, "seconds": round(seconds, 3)})
    else:
        print(f"sent {count:,} {'message' if count == 1 else 'messages'} to {topic}", file=sys.stderr)
