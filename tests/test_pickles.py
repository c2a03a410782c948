"""Pickled files: what a load would import is told, nothing of it is loaded, damage is found."""

import argparse
import collections
import io
import pickle
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trees import put_checkpoint

from ckpt.checkpoint import Depth, FileEntry, Finding, Severity, Verdict
from ckpt.operation import Progress, drive
from ckpt.pickles import Risk, check, check_zip_bytes, is_pickle_name, risk_of, walk
from ckpt.pickles.walker import Walked, Walker
from ckpt.verify import verify


class Bytes:
    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)

    def read_at(self, offset: int, size: int) -> bytes:
        return self.content[offset : offset + size]


def walked(content: bytes, **limits: int) -> Walked:
    walker = Walker(Bytes(content), **limits)
    for _ in walker.run():
        pass
    return walker.walked


def named(content: bytes) -> set[str]:
    return {f"{module}.{name}" for module, name in walked(content).imports}


def put(directory: Path, content: bytes, name: str = "x.pt") -> Path:
    (directory / name).write_bytes(content)
    return directory / name


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.code for finding in findings]


# ---- opcodes ----------------------------------------------------------------------------------

IMPORTS: dict[str, tuple[bytes, set[str]]] = {
    "GLOBAL": (b"cposix\nmkdir\n.", {"posix.mkdir"}),
    "INST": (b"(Va\niposix\nmkdir\n.", {"posix.mkdir"}),
    "OBJ of a GLOBAL": (b"(cposix\nmkdir\nVa\no.", {"posix.mkdir"}),
    "STACK_GLOBAL of short texts": (b"\x8c\x02os\x8c\x06system\x93.", {"os.system"}),
    "STACK_GLOBAL of long texts": (
        b"X\x02\0\0\0os\x8d\x06\0\0\0\0\0\0\0system\x93.",
        {"os.system"},
    ),
    "STACK_GLOBAL of text lines": (b"Vos\nVsystem\n\x93.", {"os.system"}),
    "STACK_GLOBAL of escaped lines": (b"V\\u006fs\nVsystem\n\x93.", {"os.system"}),
    "STACK_GLOBAL of quoted lines": (b"S'os'\nS\"system\"\n\x93.", {"os.system"}),
    "STACK_GLOBAL of byte texts": (b"U\x02osT\x06\0\0\0system\x93.", {"os.system"}),
    "through BINPUT and BINGET": (b"\x8c\x02osq\x05\x8c\x06system0h\x05Vpath\n\x93.", {"os.path"}),
    "through LONG_BINPUT and LONG_BINGET": (
        b"Vos\nr\0\0\1\x000j\0\0\1\0Vsystem\n\x93.",
        {"os.system"},
    ),
    "through PUT and GET": (b"Vos\np7\n0g7\nVsystem\n\x93.", {"os.system"}),
    "through MEMOIZE": (b"Vno\n\x94Vos\n\x9400h\x01Vsystem\n\x93.", {"os.system"}),
    "MEMOIZE counts what PUT left": (b"Nq\x00q\x05Vos\n\x94h\x02Vsystem\n\x93.", {"os.system"}),
    "DUP": (b"Vos\n2\x93.", {"os.os"}),
    "POP": (b"Vos\nVsystem\nVno\n0\x93.", {"os.system"}),
    "POP of a mark": (b"Vos\n(0Vsystem\n\x93.", {"os.system"}),
    "POP_MARK": (b"Vos\nVsystem\n(NN1\x93.", {"os.system"}),
    "a later pickle": (b"N.N.cos\nsystem\n.", {"os.system"}),
    "after an opcode that ends a load": (b"tcos\nsystem\n.", {"os.system"}),
    "before the bytes end": (b"\x80\x04cos\nsystem\n(", {"os.system"}),
    "a name with dots": (b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.", {"torch.os.system"}),
    "none": (b"\x80\x04\x95\x02\0\0\0\0\0\0\0K\x01.", set()),
}


@pytest.mark.parametrize(("content", "expected"), IMPORTS.values(), ids=IMPORTS)
def test_an_import_is_named(content: bytes, expected: set[str]) -> None:
    assert named(content) == expected
    assert walked(content).untold == frozenset()


COMPUTED: dict[str, bytes] = {
    "a name that a call returns": b"Vos\ncbuiltins\nstr\n(tR\x93.",
    "a module from the persistent store": b"VP\nQVsystem\n\x93.",
    "a memo that was never set": b"h\x07Vsystem\n\x93.",
    "an escaped quoted line": b"S'\\x6fs'\nS'system'\n\x93.",
    "a name longer than any": b"Vos\nX\x01\x04\0\0" + b"a" * 1025 + b"\x93.",
    "an extension code": b"\x82\x05.",
    "a line across a frame": b"\x80\x04\x95\x05\0\0\0\0\0\0\0cos\nsystem\n.",
}


@pytest.mark.parametrize("content", COMPUTED.values(), ids=COMPUTED)
def test_a_name_that_cannot_be_told_is_said_to_be_so(tmp_path: Path, content: bytes) -> None:
    report = walk(put(tmp_path, content))
    assert len(report.suspicious) == 1
    [told] = [each for each in report.findings if "cannot be told" in each.message]
    assert (told.code, told.severity) == ("unsafe-pickle", Severity.WARNING)


class Inert:
    """What stands for everything that a pickle imports: it takes anything and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __call__(self, *args: Any) -> "Inert":
        return self

    append = extend = add = __setstate__


class Recording(pickle._Unpickler):  # type: ignore[name-defined]  # the pure one: typeshed hides it
    """A load that imports nothing and takes down what it was asked for."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self.asked: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> type[Inert]:
        self.asked.add((module, name))
        return Inert

    def persistent_load(self, pid: object) -> Inert:
        return Inert()


def asked(content: bytes) -> tuple[set[tuple[str, str]], bool]:
    """Return what a load imports, and whether it reaches its end."""
    recording = Recording(content)
    try:
        recording.load()
    except Exception:
        return recording.asked, False
    return recording.asked, True


OBJECTS = (
    {"a": 1, "b": [1.5, None, True, "x" * 300, b"zz"], "c": {1, 2}, "d": -(10**40)},
    collections.OrderedDict(a=argparse.Namespace(x=collections.Counter("abca")), b=(1, 2, 3, 4)),
    [collections.OrderedDict, argparse.Namespace, print, frozenset([complex(1, 2)])],
    bytearray(b"abc"),
)
PICKLES = [pickle.dumps(each, protocol) for each in OBJECTS for protocol in range(6)]


@pytest.mark.parametrize("content", PICKLES, ids=range(len(PICKLES)))
def test_a_real_pickle_is_walked_to_its_end_and_told_as_a_load_would(content: bytes) -> None:
    found = walked(content)
    assert (set(found.imports), True) == asked(content)
    assert (found.untold, found.pickles, found.end, found.fault) == (
        frozenset(), 1, len(content), None,
    )  # fmt: skip


FRAGMENTS = [
    b"cos\nsystem\n", b"\x8c\x02os", b"\x8c\x06system", b"\x93", b"\x94", b"h\0", b"h\1", b"q\0",
    b"q\1", b"(", b"0", b"1", b"2", b"N", b"Vos\n", b"S'os'\n", b"U\x02os", b"t", b")", b"R",
    b"\x81", b"ios\nx\n", b".", b"p1\n", b"g1\n", b"\x85", b"\x86", b"]", b"}", b"a", b"b", b"Q",
    b"X\2\0\0\0os", b"Pq\n", b"I1\n", b"r\2\0\0\0", b"j\2\0\0\0", b"\x80\x04",
]  # fmt: skip
mutations = st.tuples(
    st.sampled_from(PICKLES), st.integers(0, 400), st.integers(0, 6), st.sampled_from(FRAGMENTS)
).map(lambda m: m[0][: m[1]] + m[3] + m[0][m[1] + m[2] :])
cuts = st.tuples(st.sampled_from(PICKLES), st.integers(0, 400)).map(lambda m: m[0][: m[1]])
contents = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join),
    mutations,
    cuts,
    st.binary(max_size=200),
)


@settings(max_examples=400, deadline=None)
@example(b"c")
@example(b"\x80\x04\x95\x14\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06systemVsystem\n\x94\x93\x94.")
@given(contents)
def test_nothing_that_a_load_imports_stays_untold(content: bytes) -> None:
    if b"\x96" in content:  # a load allocates as many bytes as the file claims
        return
    found = walked(content)
    imported, is_loaded = asked(content)
    assert imported <= found.imports or found.untold
    assert not is_loaded or found.pickles > 0


@settings(max_examples=150, deadline=None)
@given(st.one_of(contents, st.binary(max_size=300).map(lambda tail: b"PK\x03\x04" + tail)))
def test_any_bytes_give_a_report_and_no_exception(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = put(Path(directory), content)
        walk(path)
        drive(check(path, FileEntry("x.pt", len(content)), Depth.BYTES))


# ---- hostile input ----------------------------------------------------------------------------

MANY = 8_000
BOMBS: dict[str, bytes] = {
    "marks": b"(" * (MANY * 5),
    "values": b"N" * (MANY * 5),
    "memo": b"\x80\x04N" + b"\x94" * MANY * 3,
    "a scattered memo": b"Vos\n"
    + b"".join(b"r" + struct.pack("<I", place * 7 + 1) for place in range(MANY)),
    "texts": b"\x8c\x02ab\x94" * MANY,
    "names": b"".join(b"ca%d\nb\n0" % place for place in range(MANY)),
    "pickles": b"N." * MANY * 2,
    "extension codes": b"".join(
        b"\x84%c%c\1\0000" % (a, b) for a in range(256) for b in range(256)
    ),
    "memo lines": b"Va\n" + b"p1\n" * MANY,
    "a line without end": b"V" + b"a" * (20 << 20),
    "a name without end": b"c" + b"a" * (20 << 20),
    "a frame of 2^63 bytes": b"\x80\x04\x95" + b"\0" * 7 + b"\x80N.",
    "a number of 2 GB": b"\x8b\xff\xff\xff\x7f" + b"a" * 1000,
    "a number of less than none": b"\x8b\xff\xff\xff\xff.",
    "a text of 2^64 bytes": b"\x8d" + b"\xff" * 8 + b"a" * 1000,
    "bytes of 2^63": b"\x8e" + b"\0" * 7 + b"\x80",
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_a_bomb_takes_little_memory_and_ends(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path, content)
    size = len(content)
    del content
    tracemalloc.start()
    walk(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * size + (2 << 20)


def test_a_long_value_is_passed_over_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with path.open("wb") as file:
        file.write(b"\x80\x04\x8e" + struct.pack("<Q", 8 << 30))
        file.seek(8 << 30, io.SEEK_CUR)
        file.write(b"cos\nsystem\n.")
    started = time.process_time()
    report = walk(path)
    assert (report.imports, report.is_ended) == (("os.system",), True)
    assert time.process_time() - started < 1


def test_what_lies_beyond_the_limit_is_said_not_to_be_known(tmp_path: Path) -> None:
    content = b"\x80\x04" + b"N0" * 450_000 + b"cos\nsystem\n."
    report = walk(put(tmp_path, content))
    assert report.imports == ()
    [why] = report.suspicious
    assert why.startswith("it goes on for ")
    [finding] = report.findings
    assert finding.message == f"x.pt: what loading it runs cannot be told: {why}"
    at_bytes = drive(check(tmp_path / "x.pt", FileEntry("x.pt", len(content)), Depth.BYTES))
    assert [each.message for each in at_bytes] == [
        "x.pt: loading it runs os.system, which can do anything that you can"
    ]


FAULTS: dict[str, tuple[bytes, str, int]] = {
    "cut in a text": (b"\x80\x04\x8c\x05ab", "truncated", 4),
    "cut before its last opcode": (b"\x80\x04N", "truncated", 3),
    "cut in a number": (b"\x80\x04J\0", "truncated", 2),
    "no such opcode": (b"\x80\x04N\xff.", "bad-pickle", 3),
    "a newer protocol": (b"\x80\x06N.", "bad-pickle", 2),
    "too few values": (b"\x80\x04R.", "bad-pickle", 3),
    "a mark that was not set": (b"\x80\x04t.", "bad-pickle", 3),
    "a memo index that is no number": (b"\x80\x04gx\n.", "bad-pickle", 5),
}


@pytest.mark.parametrize(("content", "code", "at"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told_with_its_place(
    tmp_path: Path, content: bytes, code: str, at: int
) -> None:
    report = walk(put(tmp_path, content))
    assert [(each.code, each.severity) for each in report.findings] == [(code, Severity.ERROR)]
    assert f"at byte {at:,}" in report.findings[0].message


STRANGE: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "empty-file", "the file is empty"),
    "zeros": (b"\0" * 5000, "bad-pickle", "begins with zeros"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid", "bad-pickle", "a Git LFS"),
    "a web page": (b"<!DOCTYPE html><html>", "bad-pickle", "an HTML page"),
    "text": (b"hello, world", "bad-pickle", "no pickle and no zip archive"),
    "half a zip": (b"PK\x03\x04" + b"\0" * 500, "truncated", "cut short"),
}


@pytest.mark.parametrize(("content", "code", "words"), STRANGE.values(), ids=STRANGE)
def test_what_is_no_pickle_is_called_by_its_name(
    tmp_path: Path, content: bytes, code: str, words: str
) -> None:
    report = walk(put(tmp_path, content))
    assert (report.kind if code != "truncated" else None, report.imports) == (None, ())
    [finding] = [each for each in report.findings if each.code == code]
    assert words in finding.message


def test_a_tar_archive_is_said_not_to_be_looked_into(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "x.pt", "w") as tar:
        tar.add(put(tmp_path, b"cos\nsystem\n.", "pickle"), "pickle")
    report = walk(tmp_path / "x.pt")
    assert report.kind == "tar"
    assert "a tar archive" in report.suspicious[0]
    assert codes(report.findings) == ["unsafe-pickle"]


def test_a_compressed_file_is_said_not_to_be_looked_into(tmp_path: Path) -> None:
    report = walk(put(tmp_path, zlib.compress(b"cos\nsystem\n."), "x.pkl"))
    assert (report.kind, report.imports) == ("compressed", ())
    assert [each.severity for each in report.findings] == [Severity.WARNING]
    assert "cannot be told: it is compressed" in report.findings[0].message


@pytest.mark.parametrize("name", ["x.pt", "X.PTH", "two\nlines.pkl", ".hidden.pickle", "a.ckpt"])
def test_a_pickle_is_known_by_its_name(name: str) -> None:
    assert is_pickle_name(name)
    assert not is_pickle_name(name + ".json")


@pytest.mark.parametrize("content", [b"tokens, not a pickle", b"\x1f\x8b packed"])
@pytest.mark.parametrize("name", ["weights.bin", "model.ckpt"])
def test_bytes_of_another_kind_under_an_open_name_are_no_finding(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = put(tmp_path, content, name)
    assert drive(check(path, FileEntry(name, 20))) == ()


def test_a_file_that_is_not_there_or_no_file_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "dir.pt").mkdir()
    assert codes(walk(tmp_path / "gone.pt").findings) == ["missing-file"]
    assert codes(walk(tmp_path / "dir.pt").findings) == ["unreadable-file"]
    assert codes(drive(check_zip_bytes(tmp_path / "gone.pt"))) == ["missing-file"]


# ---- what an import means ---------------------------------------------------------------------

REFUSED = "weights_only=True refuses it (here it takes trust=True)"
RISKS = [
    ("collections", "OrderedDict", Risk.ORDINARY),
    ("torch._utils", "_rebuild_tensor_v2", Risk.ORDINARY),
    ("torch", "BFloat16Storage", Risk.ORDINARY),
    ("torch", "float8_e4m3fn", Risk.ORDINARY),
    ("torch.cuda", "FloatTensor", Risk.ORDINARY),
    ("_codecs", "encode", Risk.ORDINARY),
    ("builtins", "set", Risk.ORDINARY),
    ("numpy._core.multiarray", "_reconstruct", Risk.ARRAYS),
    ("numpy.core.multiarray", "scalar", Risk.ARRAYS),
    ("numpy", "dtype", Risk.ARRAYS),
    ("numpy.dtypes", "Float64DType", Risk.ARRAYS),
    ("argparse", "Namespace", Risk.UNUSUAL),
    ("pathlib", "PosixPath", Risk.UNUSUAL),
    ("builtins", "list", Risk.UNUSUAL),
    ("transformers.training_args", "TrainingArguments", Risk.UNUSUAL),
    ("torch.nn.modules.linear", "Linear", Risk.UNUSUAL),
    ("torch.FloatStorage", "x", Risk.UNUSUAL),
    ("posix", "mkdir", Risk.POWERFUL),
    ("os.path", "join", Risk.POWERFUL),
    ("builtins", "eval", Risk.POWERFUL),
    ("builtins", "some_new_one", Risk.POWERFUL),
    ("__builtin__", "getattr", Risk.POWERFUL),
    ("commands", "getoutput", Risk.POWERFUL),
    ("torch", "serialization.os.system", Risk.POWERFUL),
    ("torch", "load", Risk.POWERFUL),
    ("torch.storage", "_load_from_bytes", Risk.POWERFUL),
    ("collections", "OrderedDict.__init__.__globals__", Risk.POWERFUL),
    ("functools", "partial", Risk.POWERFUL),
    ("numpy", "load", Risk.POWERFUL),
]


@pytest.mark.parametrize(("module", "name", "risk"), RISKS, ids=[f"{m}.{n}" for m, n, _ in RISKS])
def test_an_import_has_its_risk(module: str, name: str, risk: Risk) -> None:
    assert risk_of(module, name) is risk


def test_words_name_the_code_and_never_call_a_file_harmless(tmp_path: Path) -> None:
    content = b"\x80\x02cargparse\nNamespace\ncposix\nmkdir\ncnumpy\ndtype\n0."
    found = walk(put(tmp_path, content)).findings
    assert [(each.severity, each.message) for each in found] == [
        (
            Severity.WARNING,
            "x.pt: loading it runs posix.mkdir, which can do anything that you can",
        ),
        (
            Severity.WARNING,
            f"x.pt: loading it runs code of argparse: argparse.Namespace; {REFUSED}",
        ),
    ]
    hint = "a hash that fits shows that the bytes are unchanged, not what they do: "
    hint += "load it only if you trust who wrote it"
    assert {each.hint for each in found} == {hint}
    [only] = walk(put(tmp_path, b"\x80\x02cnumpy\ndtype\n.")).findings
    assert (only.severity, only.code) == (Severity.NOTE, "unsafe-pickle")


def test_names_are_data_however_long_and_strange(tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07" + "é" * 200
    content = b"\x80\x04c" + evil.encode() + b"\nx\n."
    report = walk(put(tmp_path, content))
    assert report.imports == (f"{evil}.x",)
    assert len(report.findings[0].message) < 400


# ---- archives ---------------------------------------------------------------------------------

STATE_PICKLE = (
    b"\x80\x02}q\x00X\x01\0\0\0wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\0\0\0storage"
    b"q\x03ctorch\nFloatStorage\nq\x04X\x01\0\0\x000q\x05X\x03\0\0\0cpuq\x06K\x02tq\x07QK\x00K\x02"
    b"\x85q\x08K\x01\x85q\x09\x89ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0ds."
)
ORDINARY = (
    "collections.OrderedDict", "torch.FloatStorage", "torch._utils._rebuild_tensor_v2",
)  # fmt: skip


def put_zip(
    directory: Path,
    entries: dict[str, bytes] | None = None,
    *,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Write an archive as torch.save does, with a storage of eight bytes."""
    usual = {
        "x/data.pkl": STATE_PICKLE,
        "x/byteorder": b"little",
        "x/data/0": struct.pack("<2f", 1.0, 2.0),
        "x/version": b"3\n",
    }
    with zipfile.ZipFile(directory / "x.pt", "w", compression) as archive:
        for name, content in (entries or usual).items():
            archive.writestr(name, content)
    return directory / "x.pt"


def all_of(path: Path) -> list[tuple[str, str]]:
    entry = FileEntry(path.name, path.stat().st_size)
    found = drive(check(path, entry, Depth.BYTES))
    return [(each.severity.value, each.code) for each in found]


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_an_archive_as_torch_writes_it_has_no_finding(tmp_path: Path) -> None:
    path = put_zip(tmp_path)
    report = walk(path)
    assert (report.kind, report.imports, report.suspicious) == ("zip", ORDINARY, ())
    assert (report.is_ended, report.fault_at, report.findings) == (True, None, ())
    events: list[object] = []
    assert drive(check_zip_bytes(path), events.append) == ()
    total = len(STATE_PICKLE) + 6 + 8 + 2
    assert events == [Progress(total, total, "x.pt")]


def test_a_flipped_byte_of_a_storage_is_found_at_depth_bytes_only(tmp_path: Path) -> None:
    path = put_zip(tmp_path)
    change(path, struct.pack("<2f", 1.0, 2.0), struct.pack("<2f", 1.0, 2.5))
    assert walk(path).findings == ()
    assert drive(check(path, FileEntry("x.pt", 1))) == ()
    [found] = drive(check(path, FileEntry("x.pt", 1), Depth.BYTES))
    assert (found.code, found.severity, found.file) == ("crc-mismatch", Severity.ERROR, "x.pt")
    crc = zlib.crc32(struct.pack("<2f", 1.0, 2.0))
    assert found.message.endswith(f"recorded is {crc:08x}")
    assert "'x/data/0'" in found.message


def test_bytes_that_a_recorded_hash_covers_are_not_read_again(tmp_path: Path) -> None:
    path = put_zip(tmp_path)
    change(path, struct.pack("<2f", 1.0, 2.0), struct.pack("<2f", 1.0, 2.5))
    assert drive(check(path, FileEntry("x.pt", 1, "ab" * 32), Depth.BYTES)) == ()


def cut(count: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:-count])


def twice(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/data.pkl", b"cos\nsystem\n.")


def add(name: str, content: bytes = b"") -> Callable[[Path], None]:
    def added(path: Path) -> None:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, content)

    return added


def patch_directory(offset: int, value: bytes) -> Callable[[Path], None]:
    """Change bytes of the first entry of the directory."""

    def patch(path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = content.index(b"PK\x01\x02") + offset
        content[at : at + len(value)] = value
        path.write_bytes(content)

    return patch


def rename_local(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"x/data.pkl", b"x/data.pk_", 1))


def overlap(path: Path) -> None:
    """Let the last entry of the directory stand where the first does."""
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 42
    content[at : at + 4] = b"\0\0\0\0"
    path.write_bytes(content)


def no_crcs(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x01\x02", 16), (b"PK\x03\x04", 14)):
        at = content.find(magic)
        while at >= 0:
            content[at + offset : at + offset + 4] = b"\0" * 4
            at = content.find(magic, at + 1)
    path.write_bytes(content)


ERROR_BAD = ("error", "bad-archive")
DAMAGES: dict[str, tuple[Callable[[Path], None], set[tuple[str, str]]]] = {
    "cut by a byte": (cut(1), {("error", "truncated")}),
    "cut within its directory": (cut(60), {("error", "truncated")}),
    "bytes before it ends": (
        lambda path: path.write_bytes(path.read_bytes() + b"abc"),
        {("warning", "trailing-bytes")},
    ),
    "a byte inserted": (
        lambda path: change(path, b"little", b"littler"),
        {ERROR_BAD},
    ),
    "two of one name": (twice, {("error", "duplicate-entry"), ("warning", "unsafe-pickle")}),
    "two of one name in two spellings": (
        add("x/DATA.PKL", b"cos\nsystem\n."),
        {("error", "duplicate-entry"), ("warning", "unsafe-pickle")},
    ),
    "a name that leaves": (add("../evil"), {("error", "bad-entry-name")}),
    "an absolute name": (add("/etc/x"), {("error", "bad-entry-name")}),
    "a name with a backslash": (add("x\\..\\y"), {("error", "bad-entry-name")}),
    "another name in its own header": (
        rename_local,
        {ERROR_BAD, ("warning", "unsafe-pickle")},
    ),
    "an entry inside another": (overlap, {ERROR_BAD}),
    "a size beyond the file": (
        patch_directory(20, b"\xff\xff\xff\x7f" * 2),
        {ERROR_BAD, ("warning", "unsafe-pickle")},
    ),
    "a 64-bit size that is not there": (patch_directory(20, b"\xff" * 4), {ERROR_BAD}),
    "encrypted": (
        patch_directory(8, b"\x01\0"),
        {ERROR_BAD, ("warning", "bad-archive"), ("warning", "unsafe-pickle")},
    ),
    "packed in another way": (
        patch_directory(10, b"\x63\0"),
        {ERROR_BAD, ("warning", "bad-archive"), ("warning", "unsafe-pickle")},
    ),
    "no crcs at all": (no_crcs, {("note", "no-hashes")}),
    "more pickles": (add("x/more.pkl", b"cos\nsystem\n."), {("warning", "unsafe-pickle")}),
    "a cut pickle": (add("x/more.pkl", b"\x80\x04\x8c\x05ab"), {("error", "truncated")}),
    "a program": (add("x/code/m.py", b"pass"), {("warning", "unsafe-pickle")}),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_strange_archive_is_told(
    tmp_path: Path, damage: Callable[[Path], None], expected: set[tuple[str, str]]
) -> None:
    path = put_zip(tmp_path)
    damage(path)
    assert set(all_of(path)) == expected


def test_a_pickle_is_walked_though_it_is_compressed(tmp_path: Path) -> None:
    path = put_zip(
        tmp_path, {"x/data.pkl": b"cos\nsystem\n(V" + b"a" * 500 + b"\ntR."}, compression=8
    )
    report = walk(path)
    assert report.imports == ("os.system",)
    assert codes(report.findings) == ["compressed-entry", "unsafe-pickle"]


def test_torch_loads_its_object_under_any_spelling_of_its_name(tmp_path: Path) -> None:
    path = put_zip(tmp_path, {"x/Data.PKL": b"cos\nsystem\n.", "x/version": b"3"})
    assert walk(path).imports == ("os.system",)


def test_a_compressed_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = put_zip(tmp_path, {"x/data.pkl": b"N" * (100 << 20)}, compression=8)
    tracemalloc.start()
    report = walk(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * path.stat().st_size + (64 << 20)
    assert "cannot be read" in report.suspicious[0]


def test_a_directory_with_very_many_entries_is_not_followed(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + b"\0" * 42
    count = 300_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    size = len(entry) * count
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0, 0, 0, 0, count, count, size, 30)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 30 + size, 1)
    content = b"PK\x03\x04" + b"\0" * 26 + entry * count + record + locator + end
    [finding] = walk(put(tmp_path, content)).findings
    assert (finding.code, finding.severity) == ("bad-archive", Severity.WARNING)
    assert "300,000 entries" in finding.message


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 10_000),
)
def test_a_mutated_archive_gives_findings_and_no_exception(
    flips: list[tuple[int, int]], length: int
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = put_zip(Path(name))
        content = bytearray(path.read_bytes())
        for at, value in flips:
            content[at % len(content)] = value
        path.write_bytes(content[: length % (2 * len(content)) or None])
        all_of(path)


# ---- in a checkpoint --------------------------------------------------------------------------


def test_verify_tells_of_pickles_from_the_depth_of_headers_on(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1, 1.0)
    (path / "manifest.json").unlink()
    put(path, b"cposix\nmkdir\n(Vx\ntR.", "rng.pt")
    told = {depth: [each.code for each in drive(verify(path, depth)).findings] for depth in Depth}
    assert "unsafe-pickle" not in told[Depth.NAMES]
    assert "unsafe-pickle" in told[Depth.HEADERS]
    assert "unsafe-pickle" in told[Depth.BYTES]
    assert drive(verify(path)).verdict is Verdict.UNVERIFIABLE


def test_verify_compares_the_crcs_of_a_checkpoint_without_hashes(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1, 1.0)
    (path / "manifest.json").unlink()
    change(put_zip(path), struct.pack("<2f", 1.0, 2.0), struct.pack("<2f", 1.0, 2.5))
    assert drive(verify(path, Depth.HEADERS)).verdict is Verdict.UNVERIFIABLE
    report = drive(verify(path))
    assert report.verdict is Verdict.DAMAGED
    assert "crc-mismatch" in codes(report.findings)


def test_a_cancelled_check_closes_what_it_opened(tmp_path: Path) -> None:
    path = put_zip(tmp_path, {"x/data.pkl": b"N.", "x/data/0": b"\1" * (40 << 20)})
    checking = check_zip_bytes(path)
    assert isinstance(next(checking), Progress)
    checking.close()


# ---- what torch itself writes -----------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before zip"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_file_that_torch_wrote_is_walked_to_its_end(
    tmp_path: Path, is_zip: bool, protocol: int
) -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16), "step": 4}
    torch.save(
        state,
        tmp_path / "x.pt",
        _use_new_zipfile_serialization=is_zip,
        pickle_protocol=protocol,
    )
    report = walk(tmp_path / "x.pt")
    assert report.imports == (
        "collections.OrderedDict", "torch.BFloat16Storage", "torch.FloatStorage",
        "torch._utils._rebuild_tensor_v2",
    )  # fmt: skip
    assert (report.is_ended, report.suspicious, report.findings) == (True, (), ())
    assert all_of(tmp_path / "x.pt") == []


@pytest.mark.torch
def test_torch_loads_a_flipped_byte_without_a_word_and_verify_does_not(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.full((1000,), 3.0)}, tmp_path / "x.pt")
    change(tmp_path / "x.pt", struct.pack("<2f", 3.0, 3.0) * 200, struct.pack("<2f", 3, 4) * 200)
    assert torch.load(tmp_path / "x.pt", weights_only=True)["w"].max() == 4.0
    assert all_of(tmp_path / "x.pt") == [("error", "crc-mismatch")]


@pytest.mark.torch
def test_every_name_that_torch_allows_is_ordinary() -> None:
    pytest.importorskip("torch")
    from torch._weights_only_unpickler import _get_allowed_globals

    names = {tuple(name.rsplit(".", 1)) for name in _get_allowed_globals()}
    assert {name for name in names if risk_of(*name) is not Risk.ORDINARY} == set()
