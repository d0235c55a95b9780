"""Data folders made by copying one that initdb made, each with a system identifier of its own.

initdb takes a second or more, a copy a tenth of that. The identifier matters: a shard recognises by it
that it is a restored copy, so two instances of a test must not share one.
"""

import os
import struct
import subprocess

from localcluster.instance import Instance

_folder = None


def use_folder(folder):
    """Where the template goes; called once, before the first instance."""
    global _folder
    _folder = folder


def copy_to(data, owner):
    """Makes `data` (which must not exist) a fresh data folder."""
    template = _folder / "template"
    if not template.exists():
        Instance("template", template, 0, _folder / "template.log", owner).create({})
    subprocess.run(owner.argv(["cp", "-a", template, data]), cwd="/", check=True)
    give_identity(data)
    # The write-ahead log names the identifier too: a new, empty one.
    copy = Instance("copy", data, 0, _folder / "template.log", owner)
    copy.run([copy.bin / "pg_resetwal", "-D", data])


def crc32c_steps(data):
    """Yields (length, CRC-32C of the first `length` bytes) for every length."""
    crc = 0xFFFFFFFF
    for length, byte in enumerate(data, 1):
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        yield length, crc ^ 0xFFFFFFFF


def give_identity(data):
    """Writes a random system identifier into pg_control: its first field. The CRC is its last one."""
    control = data / "global" / "pg_control"
    raw = bytearray(control.read_bytes())
    end = next(length for length, crc in crc32c_steps(raw[:1024])
               if length % 4 == 0 and length > 64 and struct.unpack_from("=I", raw, length)[0] == crc)
    raw[:8] = struct.pack("=Q", int.from_bytes(os.urandom(8), "little") >> 1)
    *_, (_, crc) = crc32c_steps(raw[:end])
    struct.pack_into("=I", raw, end, crc)
    with control.open("r+b") as file:  # in place: owner and mode stay
        file.write(raw)
