"""Packages of Debian and translations of programs, for tests."""

import io
import struct
import tarfile


def write_package(path, files):
    """Writes a package: a compressed `tar` archive, for a .deb file in an `ar` archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with path.open("wb") as file:
        if path.suffix != ".deb":  # source code
            file.write(data.getvalue())
            return
        file.write(b"!<arch>\n")
        for name, part in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", b"odd"),
            ("data.tar.xz", data.getvalue()),
        ):
            file.write(f"{name:16}{0:<12}{0:<6}{0:<6}{0:<8}{len(part):<10}`\n".encode())
            file.write(part + b"\n" * (len(part) % 2))


def translations(texts):
    """Returns a .mo file of GNU gettext."""
    start, tables, body = 28 + 16 * len(texts), [], b""
    for side in (list(texts), list(texts.values())):
        for text in side:
            tables.append(struct.pack("<2I", len(text.encode()), start + len(body)))
            body += text.encode() + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0)
    return header + b"".join(tables) + body
