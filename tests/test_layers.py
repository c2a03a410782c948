"""Who may import whom, and that only ckpt/fs touches the disk: what linters alone would miss."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("ckpt/**/*.py"), *ROOT.glob("monitor/**/*.py")])
FORBIDDEN_AT_START = ("textual", "rich", "torch", "watchdog", "numpy", "safetensors")
DISK_METHODS = {
    "chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir",
    "lchmod", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink", "rename", "resolve",
    "rglob", "rmdir", "samefile", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
OS_DISK_CALLS = {
    "access", "chmod", "fdatasync", "fstat", "fsync", "ftruncate", "link", "listdir", "lstat",
    "makedirs", "mkdir", "mkfifo", "open", "pread", "preadv", "pwrite", "readlink", "remove",
    "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "statvfs", "symlink",
    "sync", "truncate", "unlink", "utime", "walk",
}  # fmt: skip
TENSORS = {str(path.relative_to(ROOT)) for path in ROOT.glob("ckpt/tensors/*.py")}
NUMBERS = {str(path.relative_to(ROOT)) for path in ROOT.glob("ckpt/numbers/*.py")}
TORCH = {str(path.relative_to(ROOT)) for path in ROOT.glob("ckpt/torch/*.py")}
OWN_METHODS = {("fs", "stat"), ("webbrowser", "open")}


def disk_calls(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            found.append((node.lineno, "open"))
        if not isinstance(function, ast.Attribute):
            continue
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if owner == "os" and function.attr in OS_DISK_CALLS:
            found.append((node.lineno, f"os.{function.attr}"))
        elif function.attr in DISK_METHODS and _looks_like_a_path(function.value):
            found.append((node.lineno, f"….{function.attr}"))
    return found


def _looks_like_a_path(value: ast.expr) -> bool:
    """A name that says path or directory, `Path(...)` itself, `.parent`, or a `/` join."""
    if isinstance(value, ast.Name):
        words = value.id.lower().split("_")
        return bool({"path", "directory", "dir", "parent", "target", "folder"} & set(words))
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "Path"
    if isinstance(value, ast.Attribute):
        return value.attr in ("path", "parent", "run", "run_dir", "directory")
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)


@pytest.mark.parametrize(
    "text",
    ["open('x')", "os.rename(a, b)", "path.exists()", "(a / b).unlink()", "Path('x').read_text()"],
)
def test_the_walk_sees_a_disk_call(text: str) -> None:
    assert disk_calls(ast.parse(text))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_fs_touches_the_disk(source: Path) -> None:
    if source.parent == ROOT / "ckpt" / "fs":
        return
    assert disk_calls(ast.parse(source.read_text())) == []


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("torch", TORCH),
        ("safetensors", TORCH),
        ("watchdog", {"ckpt/watch.py"}),
        ("subprocess", {"ckpt/machine.py", "ckpt/launch.py", "ckpt/shim.py", "monitor/demo.py"}),
        ("numpy", {"ckpt/ferrotensor/adapter.py", "monitor/demo.py", *NUMBERS, *TENSORS, *TORCH}),
        ("pickle", set()),
        ("mmap", {"ckpt/fs/direct.py"}),  # memory that is aligned; no file is ever mapped
    ],
)
def test_a_package_stays_where_it_belongs(package: str, allowed: set[str]) -> None:
    users = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.split(".")[0] == package for name in names):
                users.add(str(source.relative_to(ROOT)))
    assert users <= allowed


def loaded_after(statement: str) -> list[str]:
    code = (
        f"{statement}\nimport sys\n"
        f"print(*[name for name in {FORBIDDEN_AT_START!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.split("\n")[-2].split()


def test_importing_the_library_and_every_format_loads_nothing_heavy() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.glob("ckpt/formats/*.py")
        if path.stem != "__init__"
    ]
    assert loaded_after(f"import ckpt, ckpt.cli, ckpt.formats, {', '.join(modules)}") == []


def test_a_whole_status_loads_nothing_heavy(golden: Path) -> None:
    run = golden / "astrai" / "run_real" / "tree" / "exp1"
    statement = (
        "import ckpt.cli\n"
        "try:\n"
        f"    ckpt.cli.main(['status', {str(run)!r}, '--json'])\n"
        "except SystemExit:\n"
        "    pass"
    )
    assert loaded_after(statement) == []


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
