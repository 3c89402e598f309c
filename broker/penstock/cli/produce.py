"""`penstock produce`: lines or JSON documents become messages."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias

import msgspec
import typer

from penstock.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, CommandError, ExitCode, Output, run
from penstock.cli.lines import read_lines
from penstock.cli.output import print_json
from penstock.cli.parameters import MAX_BATCH_BYTES, MAX_INT32, MAX_LINGER_MS
from penstock.cli.progress import ProgressDisplay
from penstock.cli.root import make_app
from penstock.client import Delivery, Producer
from penstock.client.types import Headers
from penstock.config.addresses import quoted

app = make_app()

InputFormat = Literal["lines", "json"]
Acks = Literal["all", "1", "0"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Fields: TypeAlias = dict[str, msgspec.Raw]
"""A JSON object whose values stay as they are written."""
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
    """A message as it was read."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """What applies to all messages of one call."""

    format: InputFormat
    key_separator: str | None
    key: str | None
    partition: int | None
    headers: Headers
    ignore_partition: bool = False


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="What to read; - is standard input.")] = "-",
    format_: Annotated[
        InputFormat, typer.Option("--format", "-f", help="lines: a message each. json: a document each, see below.")
    ] = "lines",
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="What stands between key and value in a line."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of messages that bring none.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=MAX_INT32, help="All to this partition.")
    ] = None,
    ignore_partition: Annotated[
        bool,
        typer.Option("--ignore-partition", help="With --format json: keys decide, as for messages without partition."),
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="For all; may be repeated.")
    ] = None,
    acks: Annotated[Acks, typer.Option(help="Who has to have a message before it counts.")] = "all",
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches are compressed.")
    ] = "none",
    linger_ms: Annotated[
        float, typer.Option(min=0, max=MAX_LINGER_MS, help="How long a batch waits for more messages.")
    ] = 5,
    batch_size: Annotated[int, typer.Option(min=1024, max=MAX_BATCH_BYTES, help="Bytes at which a batch is sent.")] = 64
    * 1024,
    auto_create: Annotated[
        bool,
        typer.Option(
            "--auto-create/--no-auto-create",
            help="Have the broker create a topic that does not exist, if its `auto.create.topics.enable` is true.",
        ),
    ] = True,
    output: Output = "text",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send messages: each line of a file or of standard input is one.

    With `--format json` each line is a document with `value` and, if wanted, `key`, `headers` (an object, or a list of
    objects with `key` and `value`), `partition`, `timestamp_ms`. A value that is no string is sent as JSON;
    `value_base64` and `key_base64` give bytes. This is what `penstock consume --output json` writes. A copy keeps the
    partitions of its original; where the target has fewer of them, `--ignore-partition` has the keys decide.

    It stops at the first message that is refused, or not acknowledged in time.

    Examples:

    - `echo hello | penstock produce greetings`
    - `penstock produce flights flights.csv --key-separator ,`
    - `penstock consume flights --output json | penstock produce copy --format json`
    """
    headers = [parse_header(text) for text in header or []]
    if partition is not None and ignore_partition:
        raise typer.BadParameter("not together with --partition", param_hint="--ignore-partition")
    options = ProduceOptions(format_, key_separator, key, partition, headers, ignore_partition)
    settings = {
        "acks": acks if acks == "all" else int(acks),
        "compression": compression,
        "linger_ms": linger_ms,
        "batch_size": batch_size,
        "auto_create_topics": auto_create,
    }
    run(produce_all(bootstrap, topic, file, options, settings, output == "json"))


def parse_header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{quoted(text)} is not a header; write NAME=VALUE", param_hint="--header")
    return name, value.encode()


def parse_line(line: bytes, options: ProduceOptions) -> InputMessage:
    """One line as a message. Raises ValueError that says what is wrong with it."""
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
    """One JSON document as a message. Raises ValueError that says what is wrong with it."""
    document = decode_object(line)
    if not {"value", "value_base64"} & document.keys():
        raise ValueError('no object with a "value"')
    key = part(document, "key")
    if key is None and options.key is not None:
        key = options.key.encode()
    headers = document.get("headers")
    named = [] if headers is None else parse_headers(headers)
    partition = whole_number(document, "partition", 0, MAX_INT32)
    timestamp_ms = whole_number(document, "timestamp_ms", NO_TIMESTAMP, MAX_TIMESTAMP_MS)
    if options.ignore_partition:
        partition = None
    chosen = options.partition if options.partition is not None else partition
    return InputMessage(part(document, "value"), key, [*options.headers, *named], chosen, timestamp_ms)


def decode_object(line: bytes) -> Fields:
    """The values of a JSON object by name, each as it is written: numbers keep all their digits. Raises ValueError."""
    try:
        return OBJECT.decode(line.decode("utf-8-sig"))
    except msgspec.ValidationError:
        raise ValueError('no object with a "value"') from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"no JSON: {e}") from None
    except RecursionError:
        raise ValueError("no JSON: nested too deeply") from None


def whole_number(document: Fields, name: str, smallest: int, largest: int) -> int | None:
    """None where there is no such field, or null. Raises ValueError."""
    raw = document.get(name)
    if raw is None or raw == NULL:
        return None
    try:
        number = INTEGER.decode(raw)
    except msgspec.DecodeError:
        number = smallest - 1
    if not smallest <= number <= largest:
        raise ValueError(f'"{name}" is not a whole number from {smallest} to {largest}')
    return number


def parse_headers(raw: msgspec.Raw) -> list[tuple[str, bytes | None]]:
    """An object of names and values, or a list of objects with `key` and `value` or `value_base64`."""
    if raw == NULL:
        return []
    try:
        headers = HEADERS.decode(raw)
    except msgspec.DecodeError:
        raise ValueError('"headers" is neither an object nor a list of objects with a "key"') from None
    if isinstance(headers, dict):
        return [(name, content(value)) for name, value in headers.items()]
    found = []
    for header in headers:
        name = header.get("key")
        if name is None or not is_string(name):
            raise ValueError('"headers" has something that is no object with a "key"')
        found.append((STRING.decode(name), part(header, "value")))
    return found


def is_string(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[0] == QUOTE


def part(document: Fields, name: str) -> bytes | None:
    """A key or value: text, JSON as it is written, or bytes in base64. Raises ValueError."""
    encoded = document.get(f"{name}_base64")
    if encoded is not None and encoded != NULL:
        try:
            return base64.b64decode(STRING.decode(encoded), validate=True)
        except (ValueError, msgspec.DecodeError):
            raise ValueError(f'"{name}_base64" is no base64') from None
    raw = document.get(name)
    return None if raw is None else content(raw)


def content(raw: msgspec.Raw) -> bytes | None:
    """The bytes of a JSON value: a string's text, anything else as it is written; None for null. Raises ValueError."""
    if raw == NULL:
        return None
    if not is_string(raw):
        return bytes(raw)
    try:
        return STRING.decode(raw).encode()
    except msgspec.DecodeError as e:
        raise ValueError(f"no JSON: {e}") from None


def open_source(file: str, stack: AsyncExitStack) -> BinaryIO:
    return sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))


async def send(producer: Producer, topic: str, message: InputMessage) -> Delivery:
    """Raises ValueError where the topic does not have the message's partition."""
    partition = message.partition
    if partition is not None and not 0 <= partition < (count := await producer.partitions(topic)):
        raise ValueError(
            f"topic {topic!r} has no partition {partition}: it has {count}. With --ignore-partition the keys decide, "
            "--partition names one for all, `penstock topic alter` adds some"
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
    """The lines of a source that may go on for ever, until something that was sent has failed."""
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
    bootstrap: str, topic: str, file: str, options: ProduceOptions, settings: dict[str, Any], as_json: bool
) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        source = open_source(file, stack)
        producer = await stack.enter_async_context(Producer(bootstrap, **settings))
        await producer.partitions(topic)
        progress = stack.enter_context(ProgressDisplay("messages sent", quiet=source.isatty()))
        began = loop.time()
        count = size_bytes = 0
        failed = asyncio.Event()
        async for lines in read_until(source, failed):
            for line in lines:
                try:
                    message = parse_line(line, options)
                    delivery = await send(producer, topic, message)
                except ValueError as e:
                    where = "standard input" if file == "-" else file
                    raise CommandError(f"{where}, line {count + 1}: {e}", ExitCode.USAGE) from None
                count += 1
                size_bytes += len(message.value or b"") + len(message.key or b"")
            progress.show(count)
            # The last of a chunk is known last, or nearly so; the next chunk tells of what came later.
            delivery.add_done_callback(lambda _: failed.set() if producer.failure is not None else None)
            if producer.failure is not None:
                break
        await producer.flush()
        seconds = loop.time() - began
    if as_json:
        print_json({"topic": topic, "messages": count, "bytes": size_bytes, "seconds": round(seconds, 3)})
    else:
        print(f"sent {count:,} messages to {topic}", file=sys.stderr)
