"""The wire format of Protocol Buffers, read as data: numbered fields, with every length checked before it is used."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4, groups, are deprecated and refused
MOST = 1 << 22  # numbers of one list that are stored one by one, not as raw bytes

Field = int | memoryview


def fields(data: memoryview) -> Iterator[tuple[int, Field]]:
    """The number and the value of each field of a message: an int, or the bytes that it has. ValueError if damaged."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        wire = key & 7
        if wire == VARINT:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            size, at = varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if size > end - at:
            raise ValueError("it is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, of seven bits a byte with the lowest first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise ValueError("a number has more than ten bytes")


def signed(value: int) -> int:
    """A number of an int32 or int64 field, which are stored in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def numbers(value: Field) -> list[int]:
    """The integers of one occurrence of a repeated field: a single number, or a packed list."""
    if isinstance(value, int):
        return [signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(signed(number))
        if len(found) > MOST:
            raise ValueError(f"a list has more than {MOST:,} numbers")
    return found


def text(value: Field) -> str:
    """A string field."""
    return content(value).tobytes().decode("utf-8", "replace")


def content(value: Field) -> memoryview:
    """The bytes of a field that holds a message, a string or bytes."""
    if isinstance(value, int):
        raise ValueError("a field holds a number instead of bytes")
    return value


def integer(value: Field) -> int:
    """The number of a field that holds a single integer."""
    if not isinstance(value, int):
        raise ValueError("a field holds bytes instead of a number")
    return signed(value)
